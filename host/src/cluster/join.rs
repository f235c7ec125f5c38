//! Making a cluster and joining one, from the command line.
//!
//! Always true: a host gets its identity before its configuration says that it has one, and neither
//! where the other cannot be; a host that is in a cluster is refused before anything is changed.
//! Deliberately absent: the daemon, which reads both when it starts.

use super::certificates::{self, Authority};
use super::hosts::Hosts;
use super::identity::{self, Identity};
use super::member::{Member, fresh_id};
use super::tokens::Token;
use super::wire;
use crate::config::cluster::{self, Cluster};
use crate::config::{Config, parse};
use crate::error::{Error, Kind, Result, cause};
use crate::vault::Vault;
use engine::types::Uuid;
use node::frame::{Frame, HELLO_VERSION, Join, Welcome};
use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;

/// Makes a cluster of this host alone.
pub fn init(config: &Config, cluster: &Cluster) -> Result<Uuid> {
    refuse_member(config)?;
    let text = text_with(config, cluster)?;
    let authority = Authority::new(&cluster.name)?;
    let (key, public) = certificates::fresh_key()?;
    let host = fresh_id();
    let identity = Identity {
        cluster: fresh_id(),
        host,
        certificate: authority.sign(host, &public)?,
        authority,
        key,
    };
    let mut hosts = Hosts::default();
    hosts.revise(&member(config, host, cluster));
    keep(config, &identity, &hosts, &text)?;
    Ok(host)
}

/// What a host has got that has joined.
pub struct Joined {
    pub host: Uuid,
    pub cluster: Cluster,
    pub members: Vec<Member>,
}

/// Joins the cluster that has issued a token.
pub fn join(
    config: &Config,
    token: &Token,
    listen: Vec<SocketAddr>,
    domain: String,
) -> Result<Joined> {
    refuse_member(config)?;
    // What can go wrong here goes wrong before the token is used up.
    let mut joined = Cluster {
        name: "name".into(),
        listen,
        domain,
        ..Cluster::default()
    };
    text_with(config, &joined)?;
    let (key, public_key) = certificates::fresh_key()?;
    let host = fresh_id();
    let own = member(config, host, &joined);
    let join = Join {
        secret: token.secret,
        host,
        name: own.name,
        domain: own.domain,
        addresses: own.addresses,
        public_key,
    };
    let (welcome, certificate) = ask(token, join)?;
    joined.name = cluster::cluster_name(&welcome.name).map_err(strange)?;
    joined.vault = Vault::parse(&welcome.vault).map_err(|unfit| strange(unfit.into()))?;
    let identity = Identity {
        cluster: welcome.cluster,
        host,
        authority: Authority {
            cluster: joined.name.clone(),
            certificate,
            key: welcome.ca_key,
        },
        certificate: welcome.certificate,
        key,
    };
    let mut hosts = Hosts::default();
    for host in welcome.hosts {
        hosts.merge(host);
    }
    let text = text_with(config, &joined)?;
    keep(config, &identity, &hosts, &text)?;
    let others = hosts.members().filter(|known| known.id != host);
    Ok(Joined {
        host,
        cluster: joined,
        members: others.map(super::hosts::member_of).collect(),
    })
}

fn strange(wrong: crate::config::Wrong) -> Error {
    Error::failed(format!(
        "the cluster's answer: {}; upgrade this host",
        wrong.what
    ))
}

/// Forgets the cluster: first the section, so that no daemon looks for what is not there.
pub fn forget(config: &Config) -> Result<()> {
    if config.cluster.is_some() {
        let text = read(&config.path)?;
        let left = cluster::remove(&text).ok_or_else(|| {
            let shown = config.path.display();
            Error::failed(format!(
                "{shown}: its [cluster] section cannot be told from the rest; remove it by hand \
                 and run this again"
            ))
        })?;
        replace(&config.path, &left)?;
    }
    identity::remove(&config.host.state_dir)
}

fn member(config: &Config, id: Uuid, cluster: &Cluster) -> Member {
    Member {
        id,
        name: config.host.name.clone(),
        domain: cluster.domain.clone(),
        addresses: cluster.listen.iter().map(SocketAddr::to_string).collect(),
    }
}

fn refuse_member(config: &Config) -> Result<()> {
    let directory = identity::directory(&config.host.state_dir);
    let place = match (&config.cluster, identity::exists(&config.host.state_dir)) {
        (Some(_), _) => config.path.display().to_string(),
        (None, true) => directory.display().to_string(),
        (None, false) => return Ok(()),
    };
    let message = format!(
        "{place}: this host is in a cluster already; `tenuto cluster leave` takes it out of it"
    );
    Err(Error::refused(message).about(place))
}

/// The text of the configuration with the section; it is read once more before it counts.
fn text_with(config: &Config, cluster: &Cluster) -> Result<String> {
    let text = cluster::add(&read(&config.path)?, cluster);
    parse::parse(&config.path, &text)?;
    Ok(text)
}

fn keep(config: &Config, identity: &Identity, hosts: &Hosts, text: &str) -> Result<()> {
    let state_dir = &config.host.state_dir;
    identity::save(state_dir, identity, hosts)?;
    replace(&config.path, text).inspect_err(|_| {
        // The first error is the one to tell.
        let _ = identity::remove(state_dir);
    })
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| failed(path, &error))
}

/// Gives a file a new text, with the mode and owner of the old one.
fn replace(path: &Path, text: &str) -> Result<()> {
    let write = || {
        // A link stays one.
        let path = path.canonicalize()?;
        let old = fs::metadata(&path)?;
        let new = path.with_extension("toml.new");
        let mut file = File::create(&new)?;
        file.set_permissions(old.permissions())?;
        use std::os::unix::fs::{MetadataExt, fchown};
        // A user who is not root has files of its own only.
        let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        File::open(directory)?.sync_all()
    };
    write().map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    let shown = path.display().to_string();
    let message = format!(
        "{shown}: {}; run this as a user who may write it",
        cause(error)
    );
    Error::failed(message).about(shown)
}

/// Shows the token to the host that has issued it. Gives its answer and the authority's
/// certificate.
fn ask(token: &Token, join: Join) -> Result<(Welcome, Vec<u8>)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("runtime: {}", cause(&error))))?;
    let frame = Frame::Join(join).encode(HELLO_VERSION);
    let mut last = Error::usage("token: names no address; copy the whole line");
    for address in &token.addresses {
        let Ok(parsed) = address.parse() else {
            continue;
        };
        let (config, authority) = certificates::pinned(token.fingerprint)?;
        let answer = runtime.block_on(async {
            let mut stream = wire::call(parsed, token.host, config).await?;
            wire::write_soon(&mut stream, &frame).await?;
            wire::read_soon(&mut stream, HELLO_VERSION).await
        });
        match answer {
            Ok(Frame::Welcome(welcome)) => {
                let certificate = authority.get().cloned();
                let certificate = certificate.expect("it was checked while connecting");
                return Ok((welcome, certificate));
            }
            Ok(Frame::Refused { why }) => return Err(Error::new(Kind::Failed, why)),
            Ok(_) => last = Error::failed(format!("{address}: does not answer as a cluster does")),
            Err(ended) => last = Error::failed(unreachable(address, &ended.to_string())),
        }
    }
    Err(last)
}

fn unreachable(address: &str, why: &str) -> String {
    format!("{address}: {why}; the host that issued the token must run and be reachable from here")
}
