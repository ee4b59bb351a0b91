use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One means of confinement. Its name in records is the variant's in kebab case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Only the listed descriptors stay open, and the environment is empty.
    Descriptors,
    /// No core dump, bounded file size and number of open files, own session, dies with its parent.
    Limits,
    /// A user namespace of its own: no power over anything outside, even for root.
    UserNamespace,
    /// A network namespace without any interface.
    NetworkNamespace,
    /// All capability sets are empty and stay empty, also for root.
    Capabilities,
    /// Executing a set-user-ID program gives nothing.
    NoNewPrivileges,
    /// Landlock: no file but the listed ones.
    Files,
    /// Landlock: no control of devices but the listed ones (Linux 6.10).
    Devices,
    /// Landlock: no TCP port can be bound or connected to (Linux 6.7).
    TcpPorts,
    /// Landlock: no signal to, and no abstract socket of, a process outside (Linux 6.12).
    Scopes,
    /// A filter refuses system calls that make sockets, reach other processes, or change files by name.
    SystemCalls,
}

/// Whether a layer is on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The kernel took it.
    On,
    /// This host doesn't have or allow it; the text says why.
    Missing(String),
}

/// Which layers a confined process has, as its own start found them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Posture {
    layers: BTreeMap<Layer, State>,
}

impl Posture {
    /// The state of every layer that was tried.
    pub fn layers(&self) -> impl Iterator<Item = (Layer, &State)> {
        self.layers.iter().map(|(layer, state)| (*layer, state))
    }

    /// The layers that are missing, each with its reason.
    pub fn missing(&self) -> impl Iterator<Item = (Layer, &str)> {
        self.layers().filter_map(|(layer, state)| match state {
            State::On => None,
            State::Missing(reason) => Some((layer, reason.as_str())),
        })
    }

    /// Whether `layer` is on. A layer that was never tried is not.
    pub fn has(&self, layer: Layer) -> bool {
        self.layers.get(&layer) == Some(&State::On)
    }

    pub(crate) fn set(&mut self, layer: Layer, state: State) {
        self.layers.insert(layer, state);
    }
}
