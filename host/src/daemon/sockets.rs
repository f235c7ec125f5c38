//! The sockets that clients connect to.
//!
//! Always true: a socket appears under its name with its final group and mode, in one step, in
//! place of a stale one; a name on which another program answers is left alone; none is made any
//! more once all are removed. Deliberately absent: accepting, which the shard does.

use super::{Settings, StartError, host};
use crate::error::cause;
use crate::{lock, sys};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest path of a UNIX socket that every kernel takes, its ending zero not counted.
const PATH_BYTES_MAX: usize = 107;
const MODE: u32 = 0o660;
/// How long a dead daemon, whose writes have all landed, may still hold its TCP port.
const STALE_WAIT: Duration = Duration::from_secs(5);
const STALE_POLL: Duration = Duration::from_millis(20);

/// Where this daemon's sockets lie and to whom they belong.
pub(super) struct Sockets {
    run_dir: PathBuf,
    group: Option<u32>,
    /// A lock because volumes come and go on several threads.
    made: std::sync::Mutex<Made>,
}

/// The sockets that this daemon made.
#[derive(Default)]
struct Made {
    sockets: BTreeMap<Socket, Identity>,
    /// The daemon ends.
    closed: bool,
}

/// Device and inode.
type Identity = (u64, u64);

/// Who is served at a socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Socket {
    All,
    Volume(String),
    Rings(String),
}

impl Sockets {
    /// Looks at the directory and refuses one where another daemon answers.
    pub fn new(settings: &Settings) -> Result<Sockets, StartError> {
        let group = match &settings.group {
            None => None,
            Some(name) => Some(host::group_id(name).ok_or_else(|| {
                StartError::Settings(format!(
                    "group {name}: not known on this host; name one that exists"
                ))
            })?),
        };
        let run_dir = settings.run_dir.clone();
        let sockets = Sockets {
            run_dir,
            group,
            made: Default::default(),
        };
        sockets.make_directory()?;
        sockets.refuse_live(&sockets.path(&Socket::All))?;
        Ok(sockets)
    }

    fn make_directory(&self) -> Result<(), StartError> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&self.run_dir);
        made.map_err(|error| failed("make the directory", &self.run_dir, error))
    }

    pub fn path(&self, socket: &Socket) -> PathBuf {
        self.run_dir.join(match socket {
            Socket::All => "nbd.sock".to_owned(),
            Socket::Volume(name) => format!("{name}.nbd.sock"),
            Socket::Rings(name) => format!("{name}.vhost.sock"),
        })
    }

    /// The socket of all exports.
    pub fn all(&self) -> Result<OwnedFd, StartError> {
        self.bind(Socket::All)
    }

    /// The socket of one volume for front ends of vhost-user.
    pub fn rings(&self, name: &str) -> Result<OwnedFd, StartError> {
        self.bind(Socket::Rings(name.to_owned()))
    }

    /// The socket of one volume.
    pub fn volume(&self, name: &str) -> Result<OwnedFd, StartError> {
        self.bind(Socket::Volume(name.to_owned()))
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Made> {
        self.made.lock().expect("no holder of this lock panics")
    }

    fn bind(&self, socket: Socket) -> Result<OwnedFd, StartError> {
        let path = self.path(&socket);
        self.make_directory()?;
        self.refuse_live(&path)?;
        // Held over the making: all use one private directory.
        let mut made = self.made();
        if made.closed {
            return Err(StartError::Io("the daemon is stopping".into()));
        }
        let listen = |error| failed("listen on", &path, error);
        let listener = self.bind_at(&path).map_err(listen)?;
        let identity = identity(&path).map_err(listen)?;
        made.sockets.insert(socket, identity);
        Ok(listener)
    }

    /// Those that are not found under their names any more.
    pub fn gone(&self) -> Vec<Socket> {
        let made = self.made();
        let gone =
            made.sockets
                .iter()
                .filter(|(socket, ours)| match identity(&self.path(socket)) {
                    Ok(found) => found != **ours,
                    Err(error) => error.kind() == io::ErrorKind::NotFound,
                });
        gone.map(|(socket, _)| socket.clone()).collect()
    }

    pub fn is_made(&self, socket: &Socket) -> bool {
        self.made().sockets.contains_key(socket)
    }

    /// Makes the socket in a directory that nobody else can enter, and moves it into its place
    /// when it is finished: no moment in which the wrong people could connect.
    fn bind_at(&self, path: &Path) -> io::Result<OwnedFd> {
        let private = self.run_dir.join(format!(".{}", std::process::id()));
        let mut builder = DirBuilder::new();
        builder.mode(0o700);
        if let Err(error) = builder.create(&private) {
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(error);
            }
            // Left over where an earlier process of this number was killed.
            fs::remove_dir_all(&private)?;
            builder.create(&private)?;
        }
        let fresh = private.join("s");
        let bound = UnixListener::bind(&fresh).and_then(|listener| {
            fs::set_permissions(&fresh, Permissions::from_mode(MODE))?;
            if self.group.is_some() {
                chown(&fresh, None, self.group)?;
            }
            fs::rename(&fresh, path)?;
            Ok(listener)
        });
        if bound.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        // Without opening it, so that it goes also where no file can be opened any more.
        let _ = fs::remove_dir(&private);
        Ok(bound?.into())
    }

    fn refuse_live(&self, path: &Path) -> Result<(), StartError> {
        let shown = path.display();
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(StartError::Settings(format!(
                "socket {shown}: path has more than {PATH_BYTES_MAX} bytes; use a shorter name or \
                 run-dir"
            )));
        }
        // The ring of a killed daemon holds its sockets until its last write has landed, which
        // may take long: such a socket answers, but there is nobody behind it.
        let live = UnixStream::connect(path).is_ok_and(|socket| match sys::peer_pid(&socket) {
            Ok(pid @ 1..) => lock::alive(pid),
            Ok(0) | Err(_) => true,
        });
        match live {
            false => Ok(()),
            true => Err(StartError::InUse(format!(
                "socket {shown}: another program answers on it; stop it or use another run-dir"
            ))),
        }
    }

    /// Takes the socket of a volume away.
    pub fn remove_volume(&self, name: &str) {
        self.remove(Socket::Volume(name.to_owned()));
    }

    /// The same for the one of its front ends.
    pub fn remove_rings(&self, name: &str) {
        self.remove(Socket::Rings(name.to_owned()));
    }

    fn remove(&self, socket: Socket) {
        let ours = self.made().sockets.remove(&socket);
        if let Some(ours) = ours {
            remove(&self.path(&socket), ours);
        }
    }

    pub fn remove_all(&self) {
        let mut made = self.made();
        made.closed = true;
        for (socket, ours) in std::mem::take(&mut made.sockets) {
            remove(&self.path(&socket), ours);
        }
    }
}

fn identity(path: &Path) -> io::Result<Identity> {
    let meta = fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

/// Nothing of another program.
fn remove(path: &Path, ours: Identity) {
    let removed = match identity(path) {
        Ok(found) if found == ours => fs::remove_file(path),
        Ok(_) => return,
        Err(error) => Err(error),
    };
    if let Err(error) = removed {
        tracing::warn!("cannot remove socket {}: {error}", path.display());
    }
}

pub(super) fn tcp(address: SocketAddr) -> Result<OwnedFd, StartError> {
    let start = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener.into()),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                return Err(StartError::Io(format!(
                    "cannot listen on {address}: {error}"
                )));
            }
            Err(_) if start.elapsed() > STALE_WAIT => {
                return Err(StartError::InUse(format!(
                    "address {address}: another program listens on it; use another port"
                )));
            }
            Err(_) => std::thread::sleep(STALE_POLL),
        }
    }
}

fn failed(doing: &str, path: &Path, error: io::Error) -> StartError {
    StartError::Io(format!(
        "cannot {doing} {}: {}",
        path.display(),
        cause(&error)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(run_dir: &Path) -> Result<Sockets, StartError> {
        Sockets::new(&Settings {
            run_dir: run_dir.to_owned(),
            state_dir: PathBuf::new(),
            stage_dir: PathBuf::new(),
            cache_path: PathBuf::new(),
            ram_bytes: 0,
            stage_bytes: 0,
            overlay_ram_bytes: 0,
            index_ram_bytes: None,
            image_ram_bytes: 0,
            host_name: String::new(),
            group: None,
            nbd_tcp: None,
            nbd_tls: None,
            clustered: false,
            adopt_orphans: false,
            strict: true,
            pools: Vec::new(),
            images: Default::default(),
            volumes: Vec::new(),
        })
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_refused() {
        let dir = tempfile::tempdir().expect("directory");
        let first = sockets(dir.path()).expect("free");
        drop(first.all().expect("listens"));
        let second = sockets(dir.path()).expect("the first is gone");
        let _live = second.all().expect("replaces the stale one");
        let meta = fs::metadata(dir.path().join("nbd.sock")).expect("there");
        assert_eq!(meta.mode() & 0o777, MODE);
        UnixStream::connect(dir.path().join("nbd.sock")).expect("answers");
        assert!(matches!(sockets(dir.path()), Err(StartError::InUse(_))));
        second.remove_all();
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 0);
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_refused_in_words() {
        let dir = tempfile::tempdir().expect("directory");
        let sockets = sockets(dir.path()).expect("free");
        let refused = sockets.volume(&"x".repeat(200)).expect_err("too long");
        assert!(refused.to_string().contains("107 bytes"), "{refused}");
    }
}
