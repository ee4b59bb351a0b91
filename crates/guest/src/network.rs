//! The machine's interfaces: loopback, and the card where there is one. Set up by netlink messages, as an image may
//! have no program for it, and before a template is frozen, as nothing here says which machine it is.

use crate::accounts::replace;
use crate::fault::{Context as _, Fault};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt};
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::time::Duration;
use wire::link;

/// The first interface of every network namespace.
const LOOPBACK: u32 = 1;
/// Where the kernel lists interfaces.
const INTERFACES: &str = "/sys/class/net";

/// Whether there is a card.
pub(crate) fn has_card() -> bool {
    card().is_some()
}

/// Brings up `lo`; its addresses come by themselves.
pub(crate) fn raise_loopback() -> Result<(), Fault> {
    Netlink::open()?.raise(LOOPBACK, "the loopback interface")
}

/// Gives the card its address and the only route, and has names asked of the other end. A machine without a card is
/// left as it is.
pub(crate) fn raise_card() -> Result<(), Fault> {
    let Some(name) = card() else {
        return Ok(());
    };
    let index = fs_err::read_to_string(format!("{INTERFACES}/{name}/ifindex"))
        .context(|| format!("Looking at the interface `{name}`"))?;
    let index: u32 = index
        .trim()
        .parse()
        .map_err(|_| Fault::new("The interface has no number", Errno::INVAL))?;
    // Before it is up, so that it never gets an address by itself. A kernel without IPv6 has no such file.
    let setting = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
    if std::path::Path::new(&setting).exists() {
        fs_err::write(setting, "1").context(|| "Turning IPv6 off on the card".to_owned())?;
    }
    let mut netlink = Netlink::open()?;
    netlink.raise(index, "the card")?;
    netlink.add_address(index)?;
    netlink.add_neighbour(index)?;
    netlink.add_route(index)?;
    let names = format!("nameserver {}\n", link::GATEWAY);
    replace("/etc/resolv.conf", names.as_bytes(), 0o644)
}

/// The first interface that isn't loopback.
fn card() -> Option<String> {
    let entries = fs_err::read_dir(INTERFACES).ok()?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().join("device").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names.into_iter().next()
}

/// An attempt at what nothing may reach.
#[derive(Debug)]
pub(crate) struct Canary(OwnedFd);

impl Canary {
    /// Begins it; its outcome is waited for later.
    pub(crate) fn release() -> Result<Self, Fault> {
        let doing = || "Trying the network".to_owned();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
            .context(doing)?;
        match rustix::net::connect(&socket, &SocketAddrV4::new(link::CANARY, 80)) {
            Err(_) => Ok(Self(socket)),
            Ok(()) => Err(open()),
        }
    }

    /// Fails if it got somewhere. Refused is what it should be; silence is as good, and is not waited for longer than
    /// this.
    pub(crate) fn wait(self) -> Result<(), Fault> {
        const LIMIT: Duration = Duration::from_secs(1);
        let doing = || "Trying the network".to_owned();
        let limit = Timespec::try_from(LIMIT).ok();
        let mut fds = [PollFd::new(&self.0, PollFlags::OUT)];
        rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref())).context(doing)?;
        if fds[0].revents().is_empty() {
            return Ok(());
        }
        match sockopt::socket_error(&self.0).context(doing)? {
            Err(_) => Ok(()),
            Ok(()) => Err(open()),
        }
    }
}

fn open() -> Fault {
    Fault::plain(format!(
        "The network is not closed: {} answered, which nothing may reach",
        link::CANARY
    ))
}

/// A socket of routing messages (rtnetlink(7)).
struct Netlink(OwnedFd);

impl Netlink {
    fn open() -> Result<Self, Fault> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        );
        Ok(Self(socket.context(|| {
            "Opening a socket for the interfaces".to_owned()
        })?))
    }

    fn raise(&mut self, index: u32, name: &str) -> Result<(), Fault> {
        const RTM_NEWLINK: u16 = 16;
        const IFF_UP: u32 = 1;
        // `struct ifinfomsg`: family, padding and type; index; flags; which flags change.
        let mut body = vec![0; 4];
        body.extend_from_slice(&index.to_ne_bytes());
        body.extend_from_slice(&IFF_UP.to_ne_bytes());
        body.extend_from_slice(&IFF_UP.to_ne_bytes());
        self.ask(RTM_NEWLINK, 0, &body, &format!("Bringing up {name}"))
    }

    fn add_address(&mut self, index: u32) -> Result<(), Fault> {
        const RTM_NEWADDR: u16 = 20;
        const IFA_ADDRESS: u16 = 1;
        const IFA_LOCAL: u16 = 2;
        // `struct ifaddrmsg`: family, prefix, flags, scope, index.
        let mut body = vec![INET, link::PREFIX, 0, 0];
        body.extend_from_slice(&index.to_ne_bytes());
        attribute(&mut body, IFA_LOCAL, &link::MACHINE.octets());
        attribute(&mut body, IFA_ADDRESS, &link::MACHINE.octets());
        self.ask(RTM_NEWADDR, CREATE, &body, "Giving the card its address")
    }

    /// The gateway's Ethernet address, so that it is never asked for.
    fn add_neighbour(&mut self, index: u32) -> Result<(), Fault> {
        const RTM_NEWNEIGH: u16 = 28;
        const NUD_PERMANENT: u16 = 0x80;
        const NDA_DST: u16 = 1;
        const NDA_LLADDR: u16 = 2;
        // `struct ndmsg`: family and padding, index, state, flags, type.
        let mut body = vec![INET, 0, 0, 0];
        body.extend_from_slice(&index.to_ne_bytes());
        body.extend_from_slice(&NUD_PERMANENT.to_ne_bytes());
        body.extend_from_slice(&[0, 0]);
        attribute(&mut body, NDA_DST, &link::GATEWAY.octets());
        attribute(&mut body, NDA_LLADDR, &link::GATEWAY_ADDRESS);
        self.ask(RTM_NEWNEIGH, CREATE, &body, "Telling the card its gateway")
    }

    fn add_route(&mut self, index: u32) -> Result<(), Fault> {
        const RTM_NEWROUTE: u16 = 24;
        const RT_TABLE_MAIN: u8 = 254;
        const RTPROT_BOOT: u8 = 3;
        const RTN_UNICAST: u8 = 1;
        const RTA_OIF: u16 = 4;
        const RTA_GATEWAY: u16 = 5;
        // `struct rtmsg`: family, lengths of destination and source, service, table, protocol, scope, type, flags.
        let mut body = vec![INET, 0, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, 0, RTN_UNICAST];
        body.extend_from_slice(&[0; 4]);
        attribute(&mut body, RTA_GATEWAY, &link::GATEWAY.octets());
        attribute(&mut body, RTA_OIF, &index.to_ne_bytes());
        self.ask(RTM_NEWROUTE, CREATE, &body, "Setting the route")
    }

    /// Sends one message, and takes its answer.
    fn ask(&mut self, kind: u16, flags: u16, body: &[u8], what: &str) -> Result<(), Fault> {
        const NLM_F_REQUEST_ACK: u16 = 1 | 4;
        const HEADER: usize = 16;
        let doing = || what.to_owned();
        let length = u32::try_from(HEADER + body.len()).unwrap_or_default();
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend_from_slice(&length.to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&(NLM_F_REQUEST_ACK | flags).to_ne_bytes());
        message.extend_from_slice(&[0; 8]); // sequence and port
        message.extend_from_slice(body);
        let kernel = netlink::SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.0, &message, SendFlags::empty(), &kernel).context(doing)?;
        let mut answer = [0; 256];
        // The kernel answers while it takes the message, so this doesn't wait. An error number follows the header.
        let (length, _) =
            rustix::net::recv(&self.0, &mut answer, RecvFlags::DONTWAIT).context(doing)?;
        let code = answer
            .get(HEADER..HEADER + 4)
            .filter(|_| length >= HEADER + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(-libc::EIO, i32::from_ne_bytes);
        if code == 0 {
            return Ok(());
        }
        match Errno::from_raw_os_error(-code) {
            // A machine that starts again from its disk and memory has them.
            Errno::EXIST => Ok(()),
            errno => Err(Fault::new(doing(), errno)),
        }
    }
}

/// `AF_INET`
const INET: u8 = 2;
/// `NLM_F_CREATE | NLM_F_EXCL`
const CREATE: u16 = 0x400 | 0x200;

/// Adds a `struct rtattr`, padded to four bytes.
fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or_default();
    body.extend_from_slice(&length.to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}
