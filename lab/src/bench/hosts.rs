//! Two hosts of a cluster on this machine, or three, each a daemon of its own.
//!
//! Owns the daemons, their caches and their files, and the program that says for any of them that
//! it is dead. Always true: the program says so only when the process is gone; a host that is
//! killed gets SIGKILL and was waited for; all have the same volumes. Deliberately absent: a
//! network between them that is slower than loopback.

use super::own_process::{self, Process, Served, this_program};
use crate::place::{Place, make_cache};
use host::admin::client::PROMPT;
use host::error::{Error, Result, cause};
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const NAMES: [&str; 3] = ["host-a", "host-b", "host-c"];
/// Of a state to come, on a machine that others use.
const WAIT_MAX: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(2);

struct Host {
    config: PathBuf,
    run_dir: PathBuf,
    pid_file: PathBuf,
    listen: SocketAddr,
    /// Of its images, where they lie on a storage network that is simulated.
    origin_latency: Duration,
    served: Option<Served>,
}

pub struct Hosts(Vec<Host>);

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("the cluster of the benchmark: {}", cause(&error)))
}

/// An address that nothing listens at.
fn free_address() -> Result<SocketAddr> {
    let bound = TcpListener::bind("127.0.0.1:0");
    bound.and_then(|it| it.local_addr()).map_err(failed)
}

/// A program that ends with 0 when the daemon of the host that it is called with is gone.
fn fence_program(place: &Place) -> Result<PathBuf> {
    let (program, pids) = (place.path("fence"), place.path(""));
    let text = format!(
        "#!/bin/sh\npid=$(cat {pids:?}/\"$1\".pid) || exit 1\n! kill -0 \"$pid\" 2>/dev/null\n"
    );
    fs::write(&program, text).map_err(failed)?;
    let mode = fs::Permissions::from_mode(0o700);
    fs::set_permissions(&program, mode).map_err(failed)?;
    Ok(program)
}

impl Hosts {
    /// Starts both. `sizes` are lines of the table of the cache, `volumes` the tables of volumes.
    pub fn start(place: &Place, cache_bytes: u64, sizes: &str, volumes: &str) -> Result<Hosts> {
        Hosts::start_over(Duration::ZERO, place, cache_bytes, sizes, volumes)
    }

    /// The same with a third host.
    pub fn start_three(
        place: &Place,
        cache_bytes: u64,
        sizes: &str,
        volumes: &str,
    ) -> Result<Hosts> {
        let hosts = NAMES.map(|name| Host::new(place, name, cache_bytes, sizes));
        let hosts: Result<Vec<Host>> = hosts.into_iter().collect();
        Hosts::of(hosts?, place, volumes)
    }

    /// The same over a storage network of this latency.
    pub fn start_over(
        origin_latency: Duration,
        place: &Place,
        cache_bytes: u64,
        sizes: &str,
        volumes: &str,
    ) -> Result<Hosts> {
        let mut hosts = Vec::new();
        for name in &NAMES[..2] {
            let mut host = Host::new(place, name, cache_bytes, sizes)?;
            host.origin_latency = origin_latency;
            hosts.push(host);
        }
        Hosts::of(hosts, place, volumes)
    }

    fn of(mut hosts: Vec<Host>, place: &Place, volumes: &str) -> Result<Hosts> {
        let fence = fence_program(place)?;
        let (first, others) = hosts.split_first_mut().expect("there are two at least");
        let vault = format!("dir:{}", place.path("vault").display());
        first.cluster(&["init", "bench", "--vault", &vault])?;
        first.finish(&fence, volumes)?;
        first.start()?;
        for other in others {
            let token = first.token()?;
            other.cluster(&["join", &token])?;
            other.finish(&fence, volumes)?;
            other.start()?;
        }
        let hosts = Hosts(hosts);
        hosts.wait_for_links()?;
        Ok(hosts)
    }

    pub fn wait_for_links(&self) -> Result<()> {
        let others = self.0.len() - 1;
        self.0.iter().try_for_each(|host| {
            wait_for("a link", || {
                let peers = host.served().client.get("/v1/peers")?;
                let peers = peers["peers"].as_array().map_or(&[][..], |all| all);
                let up = peers.iter().filter(|peer| peer["state"] == "up");
                Ok(up.count() == others)
            })
        })
    }

    /// What the cluster calls a host.
    pub fn name(&self, at: usize) -> &'static str {
        NAMES[at]
    }

    pub fn served(&self, at: usize) -> &Served {
        self.0[at].served()
    }

    /// Where others reach a host.
    pub fn listen(&self, at: usize) -> SocketAddr {
        self.0[at].listen
    }

    /// The socket of all exports, also of a host that does not run.
    pub fn socket(&self, at: usize) -> PathBuf {
        self.0[at].run_dir.join("nbd.sock")
    }

    pub fn kill(&mut self, at: usize) {
        drop(self.0[at].served.take());
    }

    pub fn restart(&mut self, at: usize) -> Result<()> {
        self.0[at].start()
    }

    /// Whether all that this host has flushed of a volume is at as many others as it is to be.
    pub fn is_full(&self, at: usize, volume: &str) -> Result<bool> {
        let copies = &self.served(at).volume(volume)?["replication"];
        Ok(copies["state"] == "full" && copies["real"] == copies["wanted"])
    }

    pub fn wait_until_full(&self, at: usize, volume: &str) -> Result<()> {
        wait_for("the copy at the other host", || self.is_full(at, volume))
    }

    pub fn wait_until_degraded(&self, at: usize, volume: &str) -> Result<()> {
        wait_for("the end of a copy", || {
            Ok(self.served(at).volume(volume)?["replication"]["state"] == "degraded")
        })
    }
}

/// Looks until something is there.
pub fn wait_for(what: &str, mut is_there: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !is_there()? {
        if begun.elapsed() > WAIT_MAX {
            let seconds = WAIT_MAX.as_secs();
            let message = format!("{what}: not there after {seconds} s");
            return Err(Error::failed(message));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

impl Host {
    fn new(place: &Place, name: &str, cache_bytes: u64, sizes: &str) -> Result<Host> {
        let cache = place.path(&format!("{name}.cache"));
        let run_dir = place.stage_dir().join(format!("{name}-run"));
        let stage = place.stage_dir().join(format!("{name}-stage"));
        make_cache(&cache, cache_bytes)?;
        let text = own_process::config_of(name, &run_dir, &stage, &cache, sizes)?;
        let config = place.path(&format!("{name}.toml"));
        fs::write(&config, text).map_err(failed)?;
        Ok(Host {
            config,
            run_dir,
            pid_file: place.path(&format!("{name}.pid")),
            listen: free_address()?,
            origin_latency: Duration::ZERO,
            served: None,
        })
    }

    /// Makes or joins a cluster.
    fn cluster(&self, arguments: &[&str]) -> Result<()> {
        let mut command = own_process::command(&this_program()?, Stdio::null());
        command.arg("--config").arg(&self.config).arg("cluster");
        command.args(arguments);
        command.args(["--listen", &self.listen.to_string()]);
        let domain = format!("rack of {}", self.listen);
        command.args(["--domain", &domain.replace([' ', ':'], "-")]);
        let mut process = Process(command.spawn().map_err(failed)?);
        let status = process.0.wait().map_err(failed)?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::failed(format!(
                "the cluster of the benchmark: cluster {}: {status}",
                arguments[0]
            ))),
        }
    }

    /// What another host joins with. A daemon answers its administrator before it has links.
    fn token(&self) -> Result<String> {
        let client = &self.served().client;
        let mut token = None;
        wait_for("a token of the cluster", || {
            let made = client.post("/v1/cluster/token", None, PROMPT);
            token = made
                .ok()
                .and_then(|it| Some(it["token"].as_str()?.to_owned()));
            Ok(token.is_some())
        })?;
        Ok(token.unwrap_or_default())
    }

    /// What the commands of the cluster do not write; their section is the last one.
    fn finish(&self, fence: &Path, volumes: &str) -> Result<()> {
        let text = fs::read_to_string(&self.config).map_err(failed)?;
        let text = format!("{text}\nfence = {fence:?}\n{volumes}");
        fs::write(&self.config, text).map_err(failed)
    }

    fn start(&mut self) -> Result<()> {
        assert!(self.served.is_none(), "one daemon has the cache");
        // No number of an old daemon proves anything of the new one.
        match fs::remove_file(&self.pid_file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(error));
            }
            _ => {}
        }
        let mut command = own_process::command(&this_program()?, Stdio::null());
        command.arg("serve").arg("--config").arg(&self.config);
        if !self.origin_latency.is_zero() {
            let latency = format!("{}ms", self.origin_latency.as_millis());
            command.args(["--origin-latency", &latency]);
        }
        let served = Served::running(command, &self.run_dir)?;
        fs::write(&self.pid_file, served.pid().to_string()).map_err(failed)?;
        self.served = Some(served);
        Ok(())
    }

    fn served(&self) -> &Served {
        self.served.as_ref().expect("it was started")
    }
}
