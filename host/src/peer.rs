//! Who is at the other end of a socket: what tells one client from another.
//!
//! Owns that judgement. Always true: connections of one process are of one client, and a process
//! that got the number of another one is another; over TCP a client is an address, whatever its
//! ports. Deliberately absent: what a client may do.

use crate::sys;
use std::fmt;
use std::net::{IpAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    Process {
        pid: u32,
        /// Clock ticks after the start of the machine; 0 where it has gone, or may not be seen.
        started: u64,
        /// For people.
        name: String,
    },
    Address(IpAddr),
    /// A process of a name space that we do not see into.
    Hidden,
}

impl Peer {
    pub fn of(socket: &OwnedFd) -> Peer {
        let Ok(same) = socket.try_clone() else {
            return Peer::Hidden;
        };
        let stream = UnixStream::from(same);
        match sys::peer_pid(&stream) {
            Ok(pid @ 1..) => {
                let started = started(pid).unwrap_or(0);
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
                let name = name.unwrap_or_default().trim().to_owned();
                Peer::Process { pid, started, name }
            }
            _ => match TcpStream::from(OwnedFd::from(stream)).peer_addr() {
                Ok(address) => Peer::Address(address.ip().to_canonical()),
                Err(_) => Peer::Hidden,
            },
        }
    }

    /// Whether both are one client. Of one that cannot be seen nobody knows.
    pub fn is_same(&self, other: &Peer) -> bool {
        match (self, other) {
            (
                Peer::Process { pid, started, .. },
                Peer::Process {
                    pid: other,
                    started: then,
                    ..
                },
            ) => (pid, started) == (other, then),
            (Peer::Address(address), Peer::Address(other)) => address == other,
            _ => false,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Process { pid, name, .. } if name.is_empty() => write!(f, "process {pid}"),
            Peer::Process { pid, name, .. } => write!(f, "process {pid} ({name})"),
            Peer::Address(address) => write!(f, "{address}"),
            Peer::Hidden => write!(f, "a process that this host does not show"),
        }
    }
}

/// The 22nd field; the second, a name, may hold anything.
fn started(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn connections_of_one_process_or_address_are_of_one_client_and_no_others() {
        let (one, other) = UnixStream::pair().expect("works here");
        let (one, other) = (Peer::of(&one.into()), Peer::of(&other.into()));
        assert!(one.is_same(&other));
        let Peer::Process { pid, started, .. } = one.clone() else {
            panic!("{one:?}");
        };
        assert!(pid == std::process::id() && started > 0);
        let again = Peer::Process {
            pid,
            started: started + 1,
            name: String::new(),
        };
        assert!(!one.is_same(&again), "its number was given again");
        let listener = TcpListener::bind("127.0.0.1:0").expect("works here");
        let address = listener.local_addr().expect("works here");
        let clients = [0, 1].map(|_| TcpStream::connect(address).expect("works here"));
        let ends = clients.map(|client| (client, listener.accept().expect("works here").0));
        let [one, two] = ends.map(|(_client, end)| Peer::of(&end.into()));
        assert!(one.is_same(&two) && one == Peer::Address(address.ip()));
        assert!(!again.is_same(&one) && !Peer::Hidden.is_same(&Peer::Hidden));
    }
}
