//! Loopback interface of a new network namespace: it is down at first, and tests that commands run need it.

use std::io;
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto,
    socket,
};

/// The index of the loopback interface in every network namespace.
const LOOPBACK: i32 = 1;
const RTM_NEWLINK: u16 = 16;
const REQUEST_AND_ACKNOWLEDGE: u16 = 1 | 4;
const IFF_UP: u32 = 1;
/// The length of header and link message, in bytes.
const LENGTH: u32 = 32;
const NLMSG_ERROR: u16 = 2;

/// Sets the loopback interface up.
pub fn enable_loopback() -> io::Result<()> {
    let route = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    bind(route.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    sendto(route.as_raw_fd(), &set_link_up_request(), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0; 256];
    let count = recv(route.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    answer_error(&answer[..count]).map_or(Ok(()), Err)
}

/// A request to set the loopback up: `struct nlmsghdr` and `struct ifinfomsg`.
fn set_link_up_request() -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(LENGTH.to_ne_bytes());
    bytes.extend(RTM_NEWLINK.to_ne_bytes());
    bytes.extend(REQUEST_AND_ACKNOWLEDGE.to_ne_bytes());
    bytes.extend(1_u32.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    // Family and type are left open.
    bytes.extend([0; 4]);
    bytes.extend(LOOPBACK.to_ne_bytes());
    bytes.extend(IFF_UP.to_ne_bytes());
    bytes.extend(IFF_UP.to_ne_bytes());
    bytes
}

/// The error in an answer of the kernel; `None` when the request succeeded.
fn answer_error(answer: &[u8]) -> Option<io::Error> {
    let odd = || io::Error::from(io::ErrorKind::InvalidData);
    let (Some(kind), Some(code)) = (answer.get(4..6), answer.get(16..20)) else {
        return Some(odd());
    };
    let (Ok(kind), Ok(code)) = (kind.try_into(), code.try_into()) else { return Some(odd()) };
    match (u16::from_ne_bytes(kind), i32::from_ne_bytes(code)) {
        (NLMSG_ERROR, 0) => None,
        (NLMSG_ERROR, code) => Some(io::Error::from_raw_os_error(-code)),
        _ => Some(odd()),
    }
}
