//! `config --explain`: every key, its value in effect, where it comes from, what it means.
//!
//! Always true: it is made of the same table that reads the keys, so none can be missing.

use super::cluster::CLUSTER;
use super::keys::{self, Key};
use super::pool::POOL;
use super::{Config, Source, Sources};

/// One row of the explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// As in `[cache]` or `[[volume]] desk-001`.
    pub section: String,
    pub key: &'static str,
    /// As it would be written; empty where nothing is set.
    pub value: String,
    pub from: String,
    pub meaning: &'static str,
}

/// All rows, in the order of the configuration's description.
pub fn explain(config: &Config) -> Vec<Row> {
    let mut rows = Vec::new();
    section(
        &mut rows,
        "[host]",
        keys::HOST,
        &config.host,
        &config.host.sources,
    );
    section(
        &mut rows,
        "[cache]",
        keys::CACHE,
        &config.cache,
        &config.cache.sources,
    );
    section(
        &mut rows,
        "[listen]",
        keys::LISTEN,
        &config.listen,
        &config.listen.sources,
    );
    section(
        &mut rows,
        "[images]",
        keys::IMAGES,
        &config.images,
        &config.images.sources,
    );
    if let Some(cluster) = &config.cluster {
        section(&mut rows, "[cluster]", CLUSTER, cluster, &cluster.sources);
    }
    section(
        &mut rows,
        "[defaults]",
        keys::VOLUME,
        &config.defaults,
        &config.defaults.sources,
    );
    rows.retain(|row| row.section != "[defaults]" || !matches!(row.key, "name" | "origin"));
    for pool in &config.pools {
        let name = format!("[[pool]] {}", pool.name);
        section(&mut rows, &name, POOL, pool, &pool.sources);
    }
    for volume in &config.volumes {
        let name = format!("[[volume]] {}", volume.name);
        section(&mut rows, &name, keys::VOLUME, volume, &volume.sources);
    }
    rows
}

fn section<T>(
    rows: &mut Vec<Row>,
    name: &str,
    keys: &'static [Key<T>],
    values: &T,
    sources: &Sources,
) {
    for key in keys {
        let source = sources.get(key.name).unwrap_or(&Source::Default);
        rows.push(Row {
            section: name.into(),
            key: key.name,
            value: (key.show)(values),
            from: match source {
                Source::Default => "default".into(),
                Source::Line(line) => format!("line {line}"),
                Source::Defaults(line) => format!("[defaults] line {line}"),
                Source::Command => "command".into(),
            },
            meaning: key.meaning,
        });
    }
}
