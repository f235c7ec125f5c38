//! The daemon whose volumes are compared, and their images.
//!
//! Owns a raw image and a qcow2 base of the same content. Always true: the base is written through
//! the product and is no volume any more when it is stood on; a clone is made as `volume add
//! --clone-of` makes it; nothing is destaged that was not ordered, but where a volume says so.
//! Deliberately absent: what is measured.

use crate::bench::micro::peer::device_bytes;
use crate::bench::micro::serve::make_file;
use crate::bench::own_process::{self, Served, number, this_program};
use crate::bench::pipe::{Pipe, noise};
use crate::bench::work::{BLOCK_BYTES, Carrier, Work};
use crate::client::Client;
use crate::in_process::make_qcow2;
use crate::place::{Place, make_cache};
use host::admin::client::{PATIENT, PROMPT};
use host::error::{Error, Result, cause};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

/// As large as a desktop of `trace synth` needs it.
pub const DISK_BYTES: u64 = 16 << 30;
pub const RAW: &str = "raw";
pub const CLONE: &str = "clone";
const BASE: &str = "base";
const PIECE_BYTES: usize = 1 << 20;
/// Of the base so much is destaged at a time: no write of it is held back.
const STRETCH_BYTES: u64 = 32 << 20;
const LASTS: Duration = Duration::from_secs(24 * 3600);

pub struct Host<'a> {
    place: &'a Place,
    pub served: Served,
    cache: PathBuf,
}

pub fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("bench images: {}", cause(&error)))
}

fn table(name: &str, image: &std::path::Path, format: &str) -> String {
    format!(
        "[[volume]]\nname = \"{name}\"\norigin = {image:?}\nformat = \"{format}\"\npolicy = \
         \"write-back\"\nexport = [\"nbd\"]\ndestage-after = \"never\"\n"
    )
}

fn base(place: &Place) -> PathBuf {
    place.path("base.qcow2")
}

impl<'a> Host<'a> {
    /// With a new cache of this size and so much RAM for reads, and these volumes.
    fn start(place: &'a Place, bytes: u64, ram_bytes: u64, volumes: &str) -> Result<Host<'a>> {
        let (cache, run_dir) = (place.path("cache"), place.path("run"));
        make_cache(&cache, bytes)?;
        let sizes = format!("ram = \"{}MiB\"\nstage = \"64MiB\"", ram_bytes >> 20);
        let mut text = own_process::config(&run_dir, place.stage_dir(), &cache, &sizes)?;
        text += volumes;
        let config = place.path("tenuto.toml");
        fs::write(&config, text).map_err(failed)?;
        Ok(Host {
            place,
            served: Served::start(&this_program()?, &config, &run_dir)?,
            cache,
        })
    }

    /// Makes the images as well, with `data_bytes` of content.
    pub fn with_images(
        place: &'a Place,
        cache_bytes: u64,
        ram_bytes: u64,
        data_bytes: u64,
    ) -> Result<Host<'a>> {
        let (raw, base) = (place.image(RAW), base(place));
        make_file(&raw, data_bytes / BLOCK_BYTES)?;
        let grown = File::options().write(true).open(&raw);
        let grown = grown.and_then(|file| file.set_len(DISK_BYTES));
        grown.map_err(failed)?;
        make_qcow2(&base, DISK_BYTES)?;
        let volumes = table(RAW, &raw, "raw") + &table(BASE, &base, "qcow2");
        let host = Host::start(place, cache_bytes, ram_bytes, &volumes)?;
        host.fill_base(data_bytes)?;
        host.remove(BASE)?;
        Ok(host)
    }

    /// Without volumes; the base is there.
    pub fn beside_base(place: &'a Place, cache_bytes: u64, ram_bytes: u64) -> Result<Host<'a>> {
        Host::start(place, cache_bytes, ram_bytes, "")
    }

    fn fill_base(&self, bytes: u64) -> Result<()> {
        let mut client = self.client(BASE)?;
        let piece = noise().repeat(PIECE_BYTES / BLOCK_BYTES as usize);
        for offset in (0..bytes).step_by(PIECE_BYTES) {
            if offset > 0 && offset.is_multiple_of(STRETCH_BYTES) {
                self.destage(BASE)?;
            }
            client.write(offset, &piece).map_err(failed)?;
        }
        self.destage(BASE)
    }

    pub fn client(&self, name: &str) -> Result<Client> {
        Client::connect(&self.served.socket(), name).map_err(failed)
    }

    pub fn pipe(&self, name: &str) -> Result<Pipe> {
        Pipe::connect(&self.served.socket(), name, 1).map_err(failed)
    }

    pub fn image(&self, name: &str) -> PathBuf {
        self.place.image(name)
    }

    /// A new clone of the base, with these keys of a volume beside the usual ones.
    pub fn add_clone(&self, name: &str, keys: &[(&str, &str)]) -> Result<()> {
        let mut body = json!({
            "name": name,
            "origin": self.image(name).display().to_string(),
            "clone_of": base(self.place).display().to_string(),
            "plain": false,
            "policy": "write-back",
            "export": ["nbd"],
            "destage-after": "never",
        });
        keys.iter()
            .for_each(|(key, value)| body[key] = json!(value));
        let client = &self.served.client;
        client.post("/v1/volumes", Some(&body), PATIENT).map(drop)
    }

    /// A volume without dirty data; its image stays. A client that has said goodbye is waited for.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.served.wait_for_no_client(name)?;
        let place = format!("/v1/volumes/{name}");
        self.served.client.delete(&place, PROMPT).map(drop)
    }

    pub fn destage(&self, name: &str) -> Result<()> {
        let order = format!("/v1/volumes/{name}/destage?wait=true");
        self.served.client.post(&order, None, PATIENT).map(drop)
    }

    /// Carries a work that ends by itself.
    pub fn finish(&self, name: &str, work: &mut Work) -> Result<()> {
        let carried = self.pipe(name)?.carry(work, LASTS);
        carried.map(drop).map_err(failed)
    }

    pub fn volume(&self, name: &str) -> Result<Value> {
        self.served.volume(name)
    }

    pub fn status(&self) -> Result<Value> {
        self.served.client.get("/v1/status")
    }

    /// Bytes that the daemon has had read and written, where the kernel tells.
    pub fn device_bytes(&self) -> Option<(u64, u64)> {
        device_bytes(Some(self.served.pid()))
    }

    pub fn stop(self) -> Result<()> {
        self.served.stop()?;
        fs::remove_file(&self.cache).map_err(failed)
    }
}

/// What a volume has asked of its origin and of what lies beside it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub journal_bytes: u64,
    pub journal_requests: u64,
    pub syncs: u64,
}

impl Origin {
    pub fn of(volume: &Value) -> Result<Origin> {
        let of = |key: &str| number(&volume["origin"][key]);
        Ok(Origin {
            reads: of("reads")?,
            read_bytes: of("read_bytes")?,
            writes: of("writes")?,
            write_bytes: of("write_bytes")?,
            journal_bytes: of("journal_bytes")?,
            journal_requests: of("journal_requests")?,
            syncs: of("syncs")?,
        })
    }

    pub fn since(self, before: Origin) -> Origin {
        Origin {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            writes: self.writes - before.writes,
            write_bytes: self.write_bytes - before.write_bytes,
            journal_bytes: self.journal_bytes - before.journal_bytes,
            journal_requests: self.journal_requests - before.journal_requests,
            syncs: self.syncs - before.syncs,
        }
    }

    /// Written to the image and its journal.
    pub fn bytes(&self) -> u64 {
        self.write_bytes + self.journal_bytes
    }

    /// All but syncs.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.journal_requests
    }
}
