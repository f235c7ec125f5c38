//! Who this host is in its cluster: identity, certificates and list of members on disk.
//!
//! Owns `<state-dir>/cluster/`, mode 0700, in which private keys have mode 0600. Always true: the
//! directory appears whole under its name or not at all, so a host that was interrupted while it
//! joined is in no cluster; the list of members is the old one or the new one. The id of the host
//! was made for this cluster and is not that of the machine: a copy of a machine is not a member.
//! Deliberately absent: the configuration, which says where the host listens.

use super::certificates::{Authority, Credentials};
use super::hosts::Hosts;
use super::member::parse_id;
use crate::error::{Error, Result, cause};
use engine::types::Uuid;
use serde_json::{Value, json};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file longer than this is not one of ours.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone)]
pub struct Identity {
    pub cluster: Uuid,
    pub host: Uuid,
    pub authority: Authority,
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

impl Identity {
    pub fn credentials(&self) -> Credentials<'_> {
        Credentials {
            authority: &self.authority.certificate,
            certificate: &self.certificate,
            key: &self.key,
        }
    }
}

pub fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("cluster")
}

pub fn exists(state_dir: &Path) -> bool {
    directory(state_dir).exists()
}

/// Writes all of it; on stable media when this returns.
pub fn save(state_dir: &Path, identity: &Identity, hosts: &Hosts) -> Result<()> {
    let directory = directory(state_dir);
    let new = state_dir.join("cluster.new");
    let about = json!({
        "cluster": identity.cluster.to_string(),
        "name": identity.authority.cluster,
        "host": identity.host.to_string(),
    });
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(state_dir)?;
        match fs::remove_dir_all(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        DirBuilder::new().mode(0o700).create(&new)?;
        write_file(&new.join("ca.der"), 0o644, &identity.authority.certificate)?;
        write_file(&new.join("ca-key.der"), 0o600, &identity.authority.key)?;
        write_file(&new.join("host.der"), 0o644, &identity.certificate)?;
        write_file(&new.join("host-key.der"), 0o600, &identity.key)?;
        write_file(
            &new.join("identity.json"),
            0o644,
            format!("{about:#}\n").as_bytes(),
        )?;
        write_file(&new.join("hosts.json"), 0o644, text_of(hosts).as_bytes())?;
        File::open(&new)?.sync_all()?;
        fs::rename(&new, &directory)?;
        File::open(state_dir)?.sync_all()
    };
    write().map_err(|error| failed(&directory, &cause(&error)))
}

pub fn load(state_dir: &Path) -> Result<(Identity, Hosts)> {
    let directory = directory(state_dir);
    let about = read_json(&directory.join("identity.json"))?;
    let text = |key: &str| about[key].as_str();
    let wrong = || failed(&directory.join("identity.json"), "is not what was written");
    let id = |key: &str| text(key).and_then(parse_id).ok_or_else(wrong);
    let identity = Identity {
        cluster: id("cluster")?,
        host: id("host")?,
        authority: Authority {
            cluster: text("name").ok_or_else(wrong)?.into(),
            certificate: read(&directory.join("ca.der"))?,
            key: read(&directory.join("ca-key.der"))?,
        },
        certificate: read(&directory.join("host.der"))?,
        key: read(&directory.join("host-key.der"))?,
    };
    let path = directory.join("hosts.json");
    let hosts = Hosts::from_json(&read_json(&path)?);
    let hosts = hosts.ok_or_else(|| failed(&path, "is not what was written"))?;
    Ok((identity, hosts))
}

pub fn save_hosts(state_dir: &Path, hosts: &Hosts) -> Result<()> {
    let path = directory(state_dir).join("hosts.json");
    let new = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        write_file(&new, 0o644, text_of(hosts).as_bytes())?;
        fs::rename(&new, &path)?;
        File::open(directory(state_dir))?.sync_all()
    };
    write().map_err(|error| failed(&path, &cause(&error)))
}

/// Forgets it. One that is not there is forgotten already.
pub fn remove(state_dir: &Path) -> Result<()> {
    let directory = directory(state_dir);
    let old = state_dir.join("cluster.old");
    let take = || -> std::io::Result<()> {
        match fs::remove_dir_all(&old) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match fs::rename(&directory, &old) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        }
        File::open(state_dir)?.sync_all()?;
        fs::remove_dir_all(&old)
    };
    take().map_err(|error| failed(&directory, &cause(&error)))
}

fn text_of(hosts: &Hosts) -> String {
    format!("{:#}\n", hosts.to_json())
}

fn write_file(path: &Path, mode: u32, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let meta = fs::metadata(path).map_err(|error| failed(path, &cause(&error)))?;
    if meta.len() > FILE_BYTES_MAX {
        return Err(failed(path, "is larger than 1 MiB"));
    }
    fs::read(path).map_err(|error| failed(path, &cause(&error)))
}

fn read_json(path: &Path) -> Result<Value> {
    let text = read(path)?;
    serde_json::from_slice(&text).map_err(|_| failed(path, "is not JSON"))
}

fn failed(path: &Path, why: &str) -> Error {
    let shown = path.display().to_string();
    let message = format!(
        "{shown}: {why}; make it readable again, or run `tenuto cluster leave` and join again"
    );
    Error::failed(message).about(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::certificates::fresh_key;
    use crate::cluster::member::fresh_id;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_identity_reads_back_and_its_keys_are_for_its_owner_only() {
        let place = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("c1").expect("made");
        let (key, public) = fresh_key().expect("made");
        let host = fresh_id();
        let identity = Identity {
            cluster: fresh_id(),
            host,
            certificate: authority.sign(host, &public).expect("signed"),
            authority,
            key,
        };
        assert!(!exists(place.path()));
        save(place.path(), &identity, &Hosts::default()).expect("saved");
        let (read, hosts) = load(place.path()).expect("read");
        assert_eq!((read.cluster, read.host), (identity.cluster, host));
        assert_eq!(read.key, identity.key);
        assert_eq!(hosts, Hosts::default());
        for (file, mode) in [("ca-key.der", 0o600), ("host-key.der", 0o600), ("", 0o700)] {
            let meta = fs::metadata(directory(place.path()).join(file)).expect("there");
            assert_eq!(meta.permissions().mode() & 0o777, mode, "{file}");
        }
        remove(place.path()).expect("removed");
        remove(place.path()).expect("again");
        assert!(!exists(place.path()));
        assert!(load(place.path()).is_err());
    }
}
