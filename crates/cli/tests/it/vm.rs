//! Real machines.

mod crash;
mod full;
mod keep;
mod run;
mod shapes;
mod snapshot;
mod template;
mod terminal;
mod workspace;
