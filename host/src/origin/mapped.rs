//! An image of qcow2 files under a volume: what it takes to find its bytes.
//!
//! One that is written is opened in two steps: its first file, and all that lies below it when the
//! journal beside it is finished, or left for its volume to finish. Until that has happened nothing
//! but the header is believed of what the first file says.
//!
//! Always true: a file below is open once for all volumes above it, as long as one of them is
//! there; what an image is known by covers all of its files, so that a file below which was
//! replaced or written by another program is noticed like the first one. What is known of one that
//! is written is that of its first file, and apart from it what it stands on. Deliberately absent:
//! how such an image is written.

use super::Format;
use super::chain::{self, Link, Opened, Rules, Stated};
use super::content::{FileSource, Metadata};
use super::written;
use crate::fault::{Fault, Kind};
use crate::lock::Patience;
use crate::signature;
use crate::target::Target;
use ::image::resolve::{Content, Part, resolve};
use ::image::source::list_snapshots;
use ::image::types::Span;
use ::image::{Chain, Header};
use engine::chain::ChainMap;
use engine::event::{IoError, Stat};
use engine::image::{Image, Marked, Named};
use engine::origin::{FileIndex, Map};
use engine::types::{SECTOR_BYTES, Uuid};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};

/// RAM for the tables of such looks, of each image; guests have tables of their own.
const LOOK_RAM_BYTES: u64 = 256 << 10;
/// So much of a disk is looked at in one step: at most 131,072 parts.
const LOOK_BYTES_MAX: u64 = 64 << 20;

/// By device and inode.
type OpenFiles = BTreeMap<(u64, u64), Weak<Target>>;

/// Files below images that are open.
static BELOW: LazyLock<Mutex<OpenFiles>> = LazyLock::new(Mutex::default);

/// The files of an image and how they stand on each other.
#[derive(Debug)]
pub struct Mapped {
    opened: Opened,
    /// Tables for questions about what the image holds, beside those that the shard has.
    tables: Mutex<Metadata>,
    /// Names of the internal snapshots of the first file.
    snapshots: Vec<String>,
    /// Its first file is written.
    written: bool,
}

/// An image whose files are closed: a description that stays open would keep its lock, and a new
/// one out.
#[derive(Debug)]
pub struct Closed<W> {
    links: Vec<(PathBuf, ::image::Format, W)>,
    chain: Chain,
    snapshots: Vec<String>,
    written: bool,
}

/// A look at what an image holds.
pub struct Look<'a> {
    opened: &'a Opened,
    chain: Cow<'a, Chain>,
    tables: Tables<'a>,
}

enum Tables<'a> {
    Kept(MutexGuard<'a, Metadata>),
    New(Metadata),
}

impl Look<'_> {
    /// Where the first part of these bytes ends, and whether a file has data for it; the rest reads
    /// as zeroes. Waits for its files; `None` where they do not tell.
    pub fn part_at(&mut self, at: u64, bytes: u64) -> Option<(u64, bool)> {
        let bytes = bytes.min(LOOK_BYTES_MAX);
        let tables = match &mut self.tables {
            Tables::Kept(tables) => &mut **tables,
            Tables::New(tables) => tables,
        };
        let mut parts = Vec::new();
        while let Err(stop) = resolve(&self.chain, Span { at, bytes }, &mut *tables, &mut parts) {
            // What is known of the begin is an answer.
            if !parts.is_empty() {
                break;
            }
            tables.meet(self.opened, stop).ok()?;
        }
        let has_data = |part: &Part| part.content != Content::Zero;
        let first = has_data(parts.first()?);
        let alike = parts.iter().take_while(|part| has_data(part) == first);
        alike.last().map(|part| (part.span.end(), first))
    }
}

impl<W> Closed<W> {
    /// The same files, each opened again.
    pub fn open<E>(&self, open: impl Fn(&W) -> Result<Arc<Target>, E>) -> Result<Mapped, E> {
        let mut links = Vec::with_capacity(self.links.len());
        for (path, format, was) in &self.links {
            let target = open(was)?;
            links.push(Link {
                path: path.clone(),
                target: if links.is_empty() {
                    target
                } else {
                    shared(&target)
                },
                format: format.clone(),
            });
        }
        Ok(Mapped {
            opened: Opened {
                links,
                chain: self.chain.clone(),
            },
            tables: Mutex::new(Metadata::new(LOOK_RAM_BYTES)),
            snapshots: self.snapshots.clone(),
            written: self.written,
        })
    }
}

/// What is told of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageShown {
    /// What can be allocated alone.
    pub unit_bytes: u64,
    /// Its files, from the top down.
    pub chain: Vec<PathBuf>,
    /// Names of the internal snapshots of its first file.
    pub snapshots: Vec<String>,
    /// The volume writes its first file.
    pub written: bool,
}

/// Where files below images are, and what lies beside them.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// Files below have to lie in one of these directories.
    pub allow: &'a [PathBuf],
    /// Ledgers of theirs may lie here, and not beside them.
    pub journal: Option<&'a Path>,
}

/// Opens an image for reading, if it is of a format; `None` for a raw one.
pub fn open(
    path: &Path,
    format: Format,
    places: Places<'_>,
    patience: &mut Patience,
) -> Result<Option<Mapped>, Fault> {
    let top = match format {
        Format::Raw => return Ok(None),
        Format::Auto if !begins_as_qcow2(path) => return Ok(None),
        Format::Auto => None,
        Format::Qcow2 => Some(Stated::Qcow2),
    };
    let rules = Rules {
        top,
        allow: Some(places.allow),
    };
    Mapped::new(chain::open(path, &rules, patience)?, false, places).map(Some)
}

/// Opens what lies below the first file of an image, which is open for writing and has no journal
/// that is pending, or one that its volume finishes. `path` is the name that it was asked for by.
pub fn open_below(
    top: &Arc<Target>,
    path: &Path,
    places: Places<'_>,
    patience: &mut Patience,
) -> Result<Mapped, Fault> {
    let rules = Rules {
        top: Some(Stated::Qcow2),
        allow: Some(places.allow),
    };
    let mut links = vec![Link {
        path: path.to_path_buf(),
        target: top.clone(),
        format: ::image::Format::Qcow2(header_written(top, path)?),
    }];
    chain::follow_below(&rules, patience, &mut links)?;
    Mapped::new(chain::chain_of(links)?, true, places)
}

/// The header of an image that may be written.
pub fn header_written(top: &Target, path: &Path) -> Result<Box<Header>, Fault> {
    let header = chain::qcow2(top, &chain::name_of(path))?;
    written::refusal(&header, path).map_err(|why| why.fault(path))?;
    match top.block_device {
        false => Ok(header),
        true => Err(written::refuse_device().fault(path)),
    }
}

/// Whether an open file is a qcow2 image, as far as its user leaves that to its first bytes.
pub fn is_qcow2(target: &Target, format: Format) -> bool {
    let mut head = [0; signature::HEAD_BYTES];
    match format {
        Format::Raw => false,
        Format::Qcow2 => true,
        // What cannot be read is told by who reads on.
        Format::Auto => {
            target.read(0, &mut head).is_ok() && signature::image_format(&head) == Some("qcow2")
        }
    }
}

/// Without a list that can be read the active state is served all the same.
fn names_of_snapshots(top: &Link) -> Vec<String> {
    let ::image::Format::Qcow2(header) = &top.format else {
        return Vec::new();
    };
    match list_snapshots(header, &mut FileSource::new(top)) {
        Ok(listed) => listed.into_iter().map(|it| it.name).collect(),
        Err(_) => {
            let name = chain::name_of(&top.path);
            tracing::warn!("{name}: its list of snapshots cannot be read");
            Vec::new()
        }
    }
}

/// A look before it is opened in earnest; what cannot be read is told there.
pub fn begins_as_qcow2(path: &Path) -> bool {
    let mut head = Vec::new();
    let limit = signature::HEAD_BYTES as u64;
    let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut head));
    read.is_ok() && signature::image_format(&head) == Some("qcow2")
}

/// The same file as another volume has it open, if it is as it was then.
fn shared(target: &Arc<Target>) -> Arc<Target> {
    // A storage that does not answer holds up no opening on another one.
    let below = || BELOW.lock().expect("no holder of this lock panics");
    let as_it_is = |target: &Target| {
        let meta = target.file.metadata().ok()?;
        Some((
            meta.size(),
            (meta.mtime(), meta.mtime_nsec()),
            (meta.ctime(), meta.ctime_nsec()),
        ))
    };
    let known = below().get(&target.identity).and_then(Weak::upgrade);
    let known = known.filter(|known| {
        known.size_bytes == target.size_bytes && as_it_is(known) == as_it_is(target)
    });
    known.unwrap_or_else(|| {
        let mut below = below();
        below.retain(|_, known| known.strong_count() > 0);
        below.insert(target.identity, Arc::downgrade(target));
        target.clone()
    })
}

impl Mapped {
    fn new(opened: Opened, written: bool, places: Places<'_>) -> Result<Mapped, Fault> {
        written::check_below(&opened.links, places.journal)?;
        let mut opened = opened;
        for link in opened.links.iter_mut().skip(1) {
            link.target = shared(&link.target);
        }
        let snapshots = names_of_snapshots(&opened.links[0]);
        let mapped = Mapped {
            opened,
            tables: Mutex::new(Metadata::new(LOOK_RAM_BYTES)),
            snapshots,
            written,
        };
        if mapped.size_bytes() == 0 {
            let name = chain::name_of(&mapped.opened.links[0].path);
            return Err(Fault::new(
                Kind::Invalid,
                format!("{name}: is a disk of 0 bytes; a guest's disk has at least one sector"),
            ));
        }
        Ok(mapped)
    }

    /// The image with this file on top of it, which has this header; `frozen` is the name that its
    /// first file has by now. That goes on under the same open description.
    pub fn with_top(
        &self,
        (top, header): (Arc<Target>, Box<Header>),
        frozen: &str,
        places: Places<'_>,
    ) -> Result<Mapped, Fault> {
        let old = &self.opened.links[0];
        let path = old.path.with_file_name(frozen);
        let name = chain::name_of(&path);
        let failed = |error| Fault::io(&name, "open it", error);
        let mut target = old.target.shared().map_err(failed)?;
        target.size_bytes = target.file.metadata().map_err(failed)?.len();
        target.named = std::path::absolute(&path).ok();
        target.path = path.clone();
        target.read_only = true;
        let format = ::image::Format::Qcow2(chain::qcow2(&target, &name)?);
        let mut links = vec![
            Link {
                path: old.path.clone(),
                target: top,
                format: ::image::Format::Qcow2(header),
            },
            Link {
                path,
                target: Arc::new(target),
                format,
            },
        ];
        links.extend(self.opened.links.iter().skip(1).cloned());
        Mapped::new(chain::chain_of(links)?, true, places)
    }

    /// Its first file, under the same open description, with the length that it has now.
    pub fn top_as_it_is(&self) -> Result<Arc<Target>, Fault> {
        let first = &self.opened.links[0];
        let name = chain::name_of(&first.path);
        let failed = |error| Fault::io(&name, "open it", error);
        let mut target = first.target.shared().map_err(failed)?;
        target.size_bytes = target.file.metadata().map_err(failed)?.len();
        target.named.clone_from(&first.target.named);
        Ok(Arc::new(target))
    }

    /// Its files as they are now, of one that is written and at rest: its header and its length may
    /// have changed since it was opened.
    pub fn as_it_is(&self) -> Result<Opened, Fault> {
        let first = &self.opened.links[0];
        let target = self.top_as_it_is()?;
        let header = header_written(&target, &first.path)?;
        let mut links = vec![Link {
            path: first.path.clone(),
            target,
            format: ::image::Format::Qcow2(header),
        }];
        links.extend(self.opened.links.iter().skip(1).cloned());
        chain::chain_of(links)
    }

    /// Its first file is written.
    pub fn is_written(&self) -> bool {
        self.written
    }

    /// What the guest sees.
    pub fn size_bytes(&self) -> u64 {
        self.opened
            .chain
            .size_bytes()
            .next_multiple_of(SECTOR_BYTES)
    }

    /// That of its first file.
    pub fn header(&self) -> Option<&Header> {
        self.opened.chain.files()[0].header()
    }

    pub fn shown(&self) -> ImageShown {
        let header = self.header();
        ImageShown {
            unit_bytes: header.map_or(0, Header::unit_bytes),
            chain: self
                .opened
                .links
                .iter()
                .map(|link| link.path.clone())
                .collect(),
            snapshots: self.snapshots.clone(),
            written: self.written,
        }
    }

    /// The files, from the top down.
    pub fn links(&self) -> &[Link] {
        &self.opened.links
    }

    pub fn top(&self) -> &Arc<Target> {
        &self.opened.links[0].target
    }

    /// A file below the top.
    pub fn below(&self, file: FileIndex) -> Option<&Arc<Target>> {
        let link = self.opened.links.get(usize::from(file.0));
        link.filter(|_| file != FileIndex::TOP)
            .map(|link| &link.target)
    }

    /// How the files stand on each other, without what is open of them; `was` says what each is
    /// known by.
    pub fn closed<W>(&self, was: impl Fn(&Target) -> W) -> Closed<W> {
        let links = self.opened.links.iter();
        Closed {
            links: links
                .map(|link| (link.path.clone(), link.format.clone(), was(&link.target)))
                .collect(),
            chain: self.opened.chain.clone(),
            snapshots: self.snapshots.clone(),
            written: self.written,
        }
    }

    /// How its bytes are found; `names` are those of its files, `layers` what the disk is through
    /// each file below the first.
    pub fn map(&self, names: Vec<Uuid>, layers: Vec<Uuid>) -> Result<Box<dyn Map>, Fault> {
        let chain = self.opened.chain.clone();
        match self.written {
            false => Ok(Box::new(ChainMap::new(chain, names, layers))),
            true => written_map(chain, names, layers).map_err(|why| {
                let name = chain::name_of(&self.opened.links[0].path);
                Fault::new(Kind::Invalid, format!("{name}: {why}"))
            }),
        }
    }

    /// To look at what the image holds; `None` where its first file does not tell. Of one that is
    /// written it tells what is there from now on: each destage makes other tables and a longer
    /// file.
    pub fn look(&self) -> Option<Look<'_>> {
        let mut chain = Cow::Borrowed(&self.opened.chain);
        let tables = match self.written {
            false => Tables::Kept(self.tables.lock().expect("no holder of this lock panics")),
            true => {
                let top = self.top().file.metadata().ok()?;
                let first = ::image::types::FileIndex(0);
                chain.to_mut().file_mut(first).file_bytes = top.len();
                Tables::New(Metadata::new(LOOK_RAM_BYTES))
            }
        };
        Some(Look {
            opened: &self.opened,
            chain,
            tables,
        })
    }

    /// What it is known by: all of its files together, or for one that is written the first file,
    /// what that says of its writer, and a print over the others.
    pub fn stat(&self) -> Result<Stat, IoError> {
        match self.written {
            true => self.stat_to_write(),
            false => self.stat_to_read(),
        }
    }

    /// The same as who reads all its files knows it.
    pub fn stat_to_read(&self) -> Result<Stat, IoError> {
        let mut stats = self.opened.links.iter().map(|link| link.target.stat());
        let mut all = stats.next().expect("an image has a first file")?;
        for stat in stats {
            let stat = stat?;
            all.print = all
                .print
                .zip(stat.print)
                .map(|(one, other)| mix(one, other));
            all.image = all.image.zip(stat.image).map(both);
            all.named = match (all.named, stat.named) {
                (Named::Gone, _) | (_, Named::Gone) => Named::Gone,
                (Named::Unknown, _) | (_, Named::Unknown) => Named::Unknown,
                (Named::To(one), Named::To(other)) => Named::To(both((one, other))),
            };
        }
        Ok(all)
    }

    /// The same as who writes its first file knows it.
    pub fn stat_to_write(&self) -> Result<Stat, IoError> {
        let mut stat = self.top().stat()?;
        let below = self.print_below()?;
        let (marked, print) = written::marked(self.top())?;
        for image in stat.image.iter_mut() {
            (image.below, image.marked) = (below, marked);
        }
        stat.print = stat.print.map(|it| mix(it, print));
        Ok(stat)
    }

    /// A number that is another one where a file below the first is another one, by what its name
    /// leads to, or was written. Never 0, also where there is none.
    pub fn print_below(&self) -> Result<u64, IoError> {
        let mut print = mix(1, 1);
        for link in self.opened.links.iter().skip(1) {
            let stat = link.target.stat()?;
            let found = match stat.named {
                Named::To(image) => image,
                Named::Gone => Image::default(),
                Named::Unknown => stat.image.unwrap_or_default(),
            };
            let identity = match found.lasts {
                true => [found.inode, found.birth_ns],
                // Numbers of the next life are others.
                false => [0, 0],
            };
            let [inode, born] = identity;
            for number in [inode, born, found.size_bytes, found.mtime_ns] {
                print = mix(print, number);
            }
        }
        Ok(print)
    }
}

/// How the bytes of an image are found that is written.
fn written_map(
    chain: Chain,
    names: Vec<Uuid>,
    layers: Vec<Uuid>,
) -> Result<Box<dyn Map>, ::image::Error> {
    Ok(Box::new(ChainMap::writable(chain, names, layers)?))
}

/// What an image is known by together with the file below it.
fn both((above, below): (Image, Image)) -> Image {
    Image {
        device: mix(above.device, below.device),
        inode: mix(above.inode, below.inode),
        birth_ns: match above.birth_ns.min(below.birth_ns) {
            0 => 0,
            _ => mix(above.birth_ns, below.birth_ns),
        },
        size_bytes: above.size_bytes + below.size_bytes,
        mtime_ns: mix(above.mtime_ns, below.mtime_ns),
        lasts: above.lasts && below.lasts,
        below: 0,
        marked: Marked::Unknown,
    }
}

/// A number that is another one where either of the two is; never 0.
fn mix(one: u64, other: u64) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    (one.wrapping_mul(ODD).rotate_left(29) ^ other).wrapping_mul(ODD) | 1
}
