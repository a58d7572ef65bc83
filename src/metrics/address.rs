//! Where `vramtrace metrics` listens: a TCP address, or a socket in the file system.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

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

/// Removes a socket that an earlier process left: one of this user's at which nobody listens. Everything else stays,
/// and binding to the path fails.
pub fn remove_left_socket(path: &Path) {
    // SAFETY: always succeeds.
    let user = unsafe { libc::geteuid() };
    let is_left = path.symlink_metadata().is_ok_and(|about| {
        about.file_type().is_socket()
            && about.uid() == user
            && UnixStream::connect(path)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    });
    if is_left {
        // If it cannot be removed, binding says why.
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
