//! Where `vramtrace metrics` listens: a TCP address, or a socket in the file system.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, io};

use vramtrace_reader::files::Directory;

/// Where it listens if no address is given: reachable from this machine only.
pub const DEFAULT: &str = "127.0.0.1:9477";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "an address and a port are needed, such as 127.0.0.1:9477, [::1]:9477 or unix:/run/vramtrace.sock"
)]
pub struct NotAnAddress;

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Address, NotAnAddress> {
        match text.strip_prefix("unix:") {
            Some("") => Err(NotAnAddress),
            Some(path) => Ok(Address::Unix(path.into())),
            None => {
                let first = text.to_socket_addrs().ok().and_then(|mut all| all.next());
                first.map(Address::Tcp).ok_or(NotAnAddress)
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "http://{address}/metrics"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// Others than this machine's users may reach it.
    pub fn is_of_a_network(&self) -> bool {
        matches!(self, Address::Tcp(address) if !address.ip().to_canonical().is_loopback())
    }
}

/// Binds a socket for this user alone. One that an earlier process left is removed: one of this user's that nobody has
/// bound. Everything else stays, and binding fails.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    let (directory, name) = Directory::of(path)?;
    let path = directory.path_to(name);
    // SAFETY: always succeeds.
    let user = unsafe { libc::geteuid() };
    let is_left = path.symlink_metadata().is_ok_and(|about| {
        // A datagram socket cannot connect to one of a server, and does not wait for a stopped one.
        let bound = || UnixDatagram::unbound().and_then(|socket| socket.connect(&path));
        let refused = io::ErrorKind::ConnectionRefused;
        about.file_type().is_socket()
            && about.uid() == user
            && bound().is_err_and(|error| error.kind() == refused)
    });
    if is_left {
        // If it cannot be removed, binding says why.
        let _ = directory.remove(name);
    }
    // SAFETY: takes no pointers. Nothing else makes files now.
    let before = unsafe { libc::umask(0o177) };
    let bound = UnixListener::bind(&path);
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    bound
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn addresses_are_understood() {
        let tcp = |text: &str| Ok(Address::Tcp(text.parse().unwrap()));
        assert_eq!("127.0.0.1:9477".parse(), tcp("127.0.0.1:9477"));
        assert_eq!("[::1]:1".parse(), tcp("[::1]:1"));
        assert_eq!("0.0.0.0:80".parse(), tcp("0.0.0.0:80"));
        assert_eq!("unix:/run/x".parse(), Ok(Address::Unix("/run/x".into())));
        for text in ["", "9477", ":9477", "unix:", "127.0.0.1", "127.0.0.1:99999"] {
            assert_eq!(text.parse::<Address>(), Err(NotAnAddress), "{text}");
        }
        assert!(matches!(DEFAULT.parse(), Ok(Address::Tcp(at)) if at.ip().is_loopback()));
        let of_network = |text: &str| text.parse::<Address>().unwrap().is_of_a_network();
        assert!(["0.0.0.0:80", "[::]:80", "10.0.0.1:80"].into_iter().all(of_network));
        let here = ["127.0.0.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80", "unix:/run/x"];
        assert!(!here.into_iter().any(of_network));
    }

    #[test]
    fn a_left_socket_is_replaced_and_that_of_a_stopped_server_is_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let left = bind(&path).unwrap();
        assert_eq!(path.symlink_metadata().unwrap().mode() & 0o777, 0o600);
        drop(left);
        let server = bind(&path).unwrap();
        // It accepts nothing, and its queue of one is full: another connection would wait.
        // SAFETY: an open socket.
        assert_eq!(unsafe { libc::listen(server.as_raw_fd(), 0) }, 0);
        let waiting = std::os::unix::net::UnixStream::connect(&path).unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(waiting);
    }
}
