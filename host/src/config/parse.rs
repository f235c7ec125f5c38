//! From text to [`Config`], with the line of everything.
//!
//! Always true: an error names the line and the key as the file has them; of several errors the
//! one that stands first is reported, because people read from the top. `[defaults]` count for
//! every volume wherever they stand. Deliberately absent: looking at what paths name.

use super::cluster::{self, Cluster};
use super::keys::{self, Key};
use super::pool::{self, Pool};
use super::values::{Value, one_of};
use super::{Config, ConfigError, Images, Listen, Source, Sources, Volume, Wrong};
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// More volumes than this on one host are a mistake of a script.
pub const VOLUMES_MAX: usize = 4096;

const SECTIONS: [&str; 8] = [
    "host", "cache", "defaults", "volume", "images", "listen", "cluster", "pool",
];

/// Reads the text of `file`.
pub fn parse(file: &Path, text: &str) -> Result<Config, ConfigError> {
    parse_among(file, text, &[])
}

/// The same where pools of another text may have the volumes.
fn parse_among(file: &Path, text: &str, pools: &[Pool]) -> Result<Config, ConfigError> {
    let mut parser = Parser {
        file,
        text,
        ends: line_ends(text),
        errors: Vec::new(),
    };
    let document = match DeTable::parse(text) {
        Ok(document) => document.into_inner(),
        Err(error) => return Err(parser.syntax_error(&error)),
    };
    let config = parser.document(&document, pools);
    match parser.errors.into_iter().min_by_key(|error| error.line) {
        Some(error) => Err(error),
        None => Ok(config),
    }
}

/// The `[[volume]]`s of a text that holds nothing else.
pub fn parse_volumes(file: &Path, text: &str, of: &Config) -> Result<Vec<Volume>, ConfigError> {
    let mut config = parse_among(file, text, &of.pools)?;
    let mut parser = Parser {
        file,
        text,
        ends: line_ends(text),
        errors: Vec::new(),
    };
    // Read once more on top of the real defaults; the first reading has found all errors.
    config.defaults = of.defaults.clone();
    config.volumes.clear();
    match DeTable::parse(text) {
        Ok(document) => parser.volumes(document.get_ref(), &mut config),
        Err(error) => return Err(parser.syntax_error(&error)),
    }
    Ok(config.volumes)
}

/// A volume from values given by name, on top of the defaults.
pub fn new_volume(
    defaults: &Volume,
    name: &str,
    values: &[(String, Value)],
) -> Result<Volume, ConfigError> {
    new_volume_among(defaults, name, values, &[])
}

/// The same where a pool may have it.
pub fn new_volume_among(
    defaults: &Volume,
    name: &str,
    values: &[(String, Value)],
    pools: &[Pool],
) -> Result<Volume, ConfigError> {
    let mut volume = Volume {
        name: name.into(),
        line: None,
        ..defaults.clone()
    };
    keys::check_name(name).map_err(|wrong| argument_error("name", wrong))?;
    apply(&mut volume, values)?;
    volume.sources.insert("name", Source::Command);
    if let Some(pool) = pool::of(pools, name) {
        let adopted = pool.adopt(&mut volume);
        adopted.map_err(|(key, wrong)| argument_error(key, wrong))?;
    }
    if volume.origin.as_os_str().is_empty() {
        let wrong = Wrong::new("is missing", "write origin=PATH");
        return Err(argument_error("origin", wrong));
    }
    Ok(volume)
}

/// Changes a volume by values given by name.
pub fn apply(volume: &mut Volume, values: &[(String, Value)]) -> Result<(), ConfigError> {
    for (at, (name, value)) in values.iter().enumerate() {
        if name == "name" {
            let wrong = Wrong::new("a volume keeps its name", "give the name before the keys");
            return Err(argument_error(name, wrong));
        }
        if values[..at].iter().any(|(earlier, _)| earlier == name) {
            let wrong = Wrong::new("is given twice", "give it once");
            return Err(argument_error(name, wrong));
        }
        let key = find(keys::VOLUME, name).map_err(|wrong| argument_error(name, wrong))?;
        (key.set)(volume, value).map_err(|wrong| argument_error(name, wrong))?;
        volume.sources.insert(key.name, Source::Command);
    }
    Ok(())
}

fn argument_error(key: &str, wrong: Wrong) -> ConfigError {
    ConfigError {
        file: None,
        line: None,
        key: key.into(),
        wrong,
    }
}

/// Splits `KEY=VALUE`.
pub fn split_argument(text: &str) -> Result<(String, String), ConfigError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => {
            let wrong = Wrong::new("is no KEY=VALUE", "write as in policy=write-back");
            Err(argument_error(text, wrong))
        }
    }
}

fn line_ends(text: &str) -> Vec<usize> {
    let ends = text.match_indices('\n');
    ends.map(|(at, _)| at).collect()
}

struct Parser<'a> {
    file: &'a Path,
    text: &'a str,
    /// Where lines end: each key asks for its line, and files have thousands.
    ends: Vec<usize>,
    errors: Vec<ConfigError>,
}

impl Parser<'_> {
    fn document(&mut self, document: &DeTable<'_>, pools: &[Pool]) -> Config {
        let mut config = Config {
            path: self.file.to_path_buf(),
            host: keys::default_host(),
            cache: keys::default_cache(),
            listen: Listen::default(),
            images: Images::default(),
            cluster: None,
            defaults: keys::default_volume(),
            pools: pools.to_vec(),
            volumes: Vec::new(),
        };
        // A map of places beside each typed section; the section itself is borrowed meanwhile.
        let mut sources = Sources::new();
        if let Some(table) = self.table(document, "host") {
            self.section(
                table,
                keys::HOST,
                &mut config.host,
                &mut sources,
                &Source::Line,
            );
            config.host.sources = std::mem::take(&mut sources);
        }
        if let Some(table) = self.table(document, "cache") {
            self.section(
                table,
                keys::CACHE,
                &mut config.cache,
                &mut sources,
                &Source::Line,
            );
            config.cache.sources = std::mem::take(&mut sources);
        }
        if let Some(table) = self.table(document, "listen") {
            self.section(
                table,
                keys::LISTEN,
                &mut config.listen,
                &mut sources,
                &Source::Line,
            );
            config.listen.sources = std::mem::take(&mut sources);
        }
        if let Some(table) = self.table(document, "images") {
            self.section(
                table,
                keys::IMAGES,
                &mut config.images,
                &mut sources,
                &Source::Line,
            );
            config.images.sources = std::mem::take(&mut sources);
        }
        config.cluster = self.cluster(document);
        if let Some(table) = self.table(document, "defaults") {
            self.defaults(table, &mut config.defaults);
        }
        self.pools(document, &mut config.pools);
        self.volumes(document, &mut config);
        self.members(&mut config);
        self.other_sections(document);
        config
    }

    fn pools(&mut self, document: &DeTable<'_>, pools: &mut Vec<Pool>) {
        let Some((key, value)) = document.get_key_value("pool") else {
            return;
        };
        let line = self.line(key.span().start);
        let DeValue::Array(list) = value.get_ref() else {
            let wrong = Wrong::new("is not a list of pools", "write [[pool]], in two brackets");
            return self.error(Some(line), "pool", wrong);
        };
        if list.len() > pool::POOLS_MAX {
            let right = format!("write at most {}", pool::POOLS_MAX);
            return self.error(Some(line), "pool", Wrong::new("too many pools", right));
        }
        for item in list.iter() {
            let line = self.line(item.span().start);
            let Some(table) = item.get_ref().as_table() else {
                let wrong = Wrong::new("is not a pool", "write [[pool]] and its keys below");
                self.error(Some(line), "pool", wrong);
                continue;
            };
            let (mut found, mut sources) = (pool::default_pool(), Sources::new());
            self.section(table, pool::POOL, &mut found, &mut sources, &Source::Line);
            (found.line, found.sources) = (Some(line), sources);
            if let Some((key, wrong)) = pool::misfit(&found, pools) {
                let line = found.sources.get(key).and_then(Source::line).or(found.line);
                self.error(line, key, wrong);
            }
            pools.push(found);
        }
    }

    /// Volumes that only their pools name, and those that two have.
    fn members(&mut self, config: &mut Config) {
        let unnamed = pool::unnamed(&config.pools, &config.volumes);
        if config.volumes.len() + unnamed.len() > VOLUMES_MAX {
            let line = unnamed.first().and_then(|(_, line)| *line);
            let wrong = Wrong::new("too many volumes", format!("write at most {VOLUMES_MAX}"));
            return self.error(line, "members", wrong);
        }
        for (name, line) in unnamed {
            let mut volume = Volume {
                name,
                line,
                ..config.defaults.clone()
            };
            self.adopt(&config.pools, &mut volume);
            config.volumes.push(volume);
        }
        for volume in &config.volumes {
            if let Some((one, other)) = pool::second(&config.pools, &volume.name) {
                let (name, one, line) = (&volume.name, &one.name, other.line);
                let what = format!("pool {one} has the volume {name} as well");
                let wrong = Wrong::new(what, "let each volume be of one pool");
                self.error(line, "members", wrong);
            }
        }
    }

    fn adopt(&mut self, pools: &[Pool], volume: &mut Volume) {
        let Some(pool) = pool::of(pools, &volume.name) else {
            return;
        };
        if let Err((key, wrong)) = pool.adopt(volume) {
            let line = volume.sources.get(key).and_then(Source::line);
            self.error(line.or(volume.line), key, wrong);
        }
    }

    fn cluster(&mut self, document: &DeTable<'_>) -> Option<Cluster> {
        let table = self.table(document, "cluster")?;
        let (mut cluster, mut sources) = (Cluster::default(), Sources::new());
        let keys = cluster::CLUSTER;
        self.section(table, keys, &mut cluster, &mut sources, &Source::Line);
        cluster.sources = sources;
        if let Some(key) = cluster::missing(&cluster) {
            let (name, _) = document.get_key_value("cluster")?;
            let line = self.line(name.span().start);
            let right = "write it, or leave the section to `tenuto cluster init` and `join`";
            self.error(Some(line), key, Wrong::new("is missing", right));
        }
        Some(cluster)
    }

    fn other_sections(&mut self, document: &DeTable<'_>) {
        for (name, _) in document.iter() {
            let line = self.line(name.span().start);
            match name.get_ref().as_ref() {
                known if SECTIONS.contains(&known) => {}
                unknown => {
                    let wrong = Wrong::new("unknown section", suggestion(unknown, &SECTIONS));
                    self.error(Some(line), unknown, wrong);
                }
            }
        }
    }

    fn defaults(&mut self, table: &DeTable<'_>, volume: &mut Volume) {
        for own in ["name", "origin"] {
            if let Some((key, _)) = table.get_key_value(own) {
                let line = self.line(key.span().start);
                let wrong = Wrong::new("cannot be a default", "write it in each [[volume]]");
                self.error(Some(line), own, wrong);
            }
        }
        let mut sources = Sources::new();
        self.section(table, keys::VOLUME, volume, &mut sources, &Source::Defaults);
        volume.name.clear();
        volume.origin = PathBuf::new();
        volume.sources = sources;
    }

    fn volumes(&mut self, document: &DeTable<'_>, config: &mut Config) {
        let Some((key, value)) = document.get_key_value("volume") else {
            return;
        };
        let DeValue::Array(list) = value.get_ref() else {
            let line = self.line(key.span().start);
            let wrong = Wrong::new(
                "is not a list of volumes",
                "write [[volume]], in two brackets",
            );
            return self.error(Some(line), "volume", wrong);
        };
        if list.len() > VOLUMES_MAX {
            let line = self.line(key.span().start);
            let wrong = Wrong::new("too many volumes", format!("write at most {VOLUMES_MAX}"));
            return self.error(Some(line), "volume", wrong);
        }
        for item in list.iter() {
            let volume = self.volume(item, &config.defaults, &config.pools);
            self.check_new(&volume, &config.volumes);
            config.volumes.push(volume);
        }
    }

    fn volume(&mut self, item: &Spanned<DeValue<'_>>, defaults: &Volume, pools: &[Pool]) -> Volume {
        let line = self.line(item.span().start);
        let mut volume = Volume {
            line: Some(line),
            ..defaults.clone()
        };
        let mut sources = std::mem::take(&mut volume.sources);
        match item.get_ref().as_table() {
            Some(table) => {
                self.section(
                    table,
                    keys::VOLUME,
                    &mut volume,
                    &mut sources,
                    &Source::Line,
                );
            }
            None => self.error(
                Some(line),
                "volume",
                Wrong::new("is not a volume", "write [[volume]] and its keys below"),
            ),
        }
        volume.sources = sources;
        self.adopt(pools, &mut volume);
        let missing = [
            ("name", volume.name.is_empty()),
            ("origin", volume.origin.as_os_str().is_empty()),
        ];
        for (key, missing) in missing {
            if missing && !volume.sources.contains_key(key) {
                let wrong = Wrong::new("is missing", format!("write {key} = \"…\" below"));
                self.error(Some(line), key, wrong);
            }
        }
        volume
    }

    fn check_new(&mut self, volume: &Volume, earlier: &[Volume]) {
        let twin = |other: &&Volume| !volume.name.is_empty() && other.name == volume.name;
        if let Some(other) = earlier.iter().find(twin) {
            let wrong = Wrong::new(
                format!(
                    "{:?} is already the name of the volume of line {}",
                    volume.name,
                    other.line.unwrap_or(0)
                ),
                "give each volume a name of its own",
            );
            self.error(
                volume.sources.get("name").and_then(Source::line),
                "name",
                wrong,
            );
        }
    }

    fn table<'d, 't>(&mut self, document: &'d DeTable<'t>, name: &str) -> Option<&'d DeTable<'t>> {
        let (key, value) = document.get_key_value(name)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            let line = self.line(key.span().start);
            let wrong = Wrong::new("is not a section", format!("write [{name}] once"));
            self.error(Some(line), name, wrong);
        }
        table
    }

    /// Reads every key of one section.
    fn section<T>(
        &mut self,
        table: &DeTable<'_>,
        known: &'static [Key<T>],
        to: &mut T,
        sources: &mut Sources,
        source: &dyn Fn(usize) -> Source,
    ) {
        for (name, value) in table.iter() {
            let line = self.line(name.span().start);
            let name = name.get_ref().as_ref();
            match find(known, name) {
                Ok(key) => {
                    sources.insert(key.name, source(line));
                    if let Err(wrong) = (key.set)(to, &Value::from_toml(value.get_ref())) {
                        self.error(Some(line), name, wrong);
                    }
                }
                Err(wrong) => self.error(Some(line), name, wrong),
            }
        }
    }

    fn error(&mut self, line: Option<usize>, key: &str, wrong: Wrong) {
        let file = Some(self.file.to_path_buf());
        self.errors.push(ConfigError {
            file,
            line,
            key: key.into(),
            wrong,
        });
    }

    fn line(&self, offset: usize) -> usize {
        1 + self.ends.partition_point(|end| *end < offset)
    }

    fn syntax_error(&self, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or(0..0);
        let start = span.start.min(self.text.len());
        let message = error
            .message()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let key = self.text[line_start..].lines().next().unwrap_or("");
        let key = key.split('=').next().unwrap_or("").trim();
        let is_key = !key.is_empty() && !key.contains(|c: char| c.is_whitespace());
        ConfigError {
            file: Some(self.file.to_path_buf()),
            line: Some(self.line(start)),
            key: if is_key { key.into() } else { "syntax".into() },
            wrong: Wrong::new(message, "write key = value, texts in quotes, each key once"),
        }
    }
}

fn find<T>(known: &'static [Key<T>], name: &str) -> Result<&'static Key<T>, Wrong> {
    known.iter().find(|key| key.name == name).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|key| key.name).collect();
        Wrong::new("unknown key", suggestion(name, &names))
    })
}

/// The known name that was probably meant, else all of them.
fn suggestion(name: &str, known: &[&str]) -> String {
    let best = known.iter().map(|key| (distance(name, key), key)).min();
    match best {
        Some((distance, key)) if distance <= 1 + name.len() / 4 => {
            format!("did you mean \"{key}\"?")
        }
        _ => format!("known here are {}", one_of(known).replace(" or ", " and ")),
    }
}

/// Levenshtein's distance; underscores count as the hyphens they were meant to be.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.replace('_', "-").chars().collect();
    let mut row: Vec<usize> = (0..=a.len()).collect();
    for (i, letter) in b.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for j in 0..a.len() {
            let change = diagonal + usize::from(a[j] != letter);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[a.len()]
}
