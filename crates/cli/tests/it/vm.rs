//! Real machines.

mod crash;
mod keep;
mod run;
mod shapes;
mod terminal;
mod workspace;
