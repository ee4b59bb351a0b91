//! Real machines.

mod crash;
mod keep;
mod run;
mod shapes;
mod snapshot;
mod template;
mod terminal;
mod workspace;
