use jail::Layer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What there is to attack. The test made all of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// A file of the user.
    pub(crate) file: PathBuf,
    /// A file of the user that doesn't exist.
    pub(crate) absent: PathBuf,
    /// The port of a listener on loopback, TCP and UDP alike.
    pub(crate) port: u16,
    /// The path of a listening socket.
    pub(crate) socket: PathBuf,
    /// The name of a listening abstract socket.
    pub(crate) abstract_socket: String,
    /// The test's process id: a process outside of the jail.
    pub(crate) outsider: i32,
    /// Layers that are demanded.
    pub(crate) required: BTreeSet<Layer>,
    /// The number of the descriptor that takes the report, filled in by the supervisor.
    pub(crate) report: i32,
}
