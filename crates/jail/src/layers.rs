//! One module for each layer. Each function puts its layer on the calling process for good.

pub(crate) mod capabilities;
pub(crate) mod descriptors;
pub(crate) mod files;
pub(crate) mod limits;
pub(crate) mod namespaces;
pub(crate) mod system_calls;
