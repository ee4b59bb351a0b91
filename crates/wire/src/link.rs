//! Addresses on a machine's cable: the same in each machine, as no two are on one. They are of the network that
//! RFC 2544 sets aside for benchmarks, which no host routes.

use std::net::Ipv4Addr;

/// The machine's own address.
pub const MACHINE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// The other end of the cable: the way to everywhere, and who answers names.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// How many bits of these two are the cable's.
pub const PREFIX: u8 = 30;
/// The gateway's Ethernet address: locally administered.
pub const GATEWAY_ADDRESS: [u8; 6] = [0x02, 0x65, 0x66, 0x69, 0x00, 0x01];
/// An address that nothing may be reached at: of TEST-NET-1 (RFC 5737). A machine tries it before it is handed over.
pub const CANARY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
