//! Reload: the file is read again, and what can change while guests go on does.
//!
//! Always true: the file wins for the volumes it names, also over what `volume set` changed since;
//! of a volume of which something needs a restart nothing changes before it; a volume that is gone
//! from the file loses no data and no client; certificates are read again, and wrong ones leave
//! everything as it was. A line of the outcome says what became of each.

use super::pools::renew_members;
use super::{Admin, Known, Look, Outcome, find};
use crate::config::cluster::CLUSTER;
use crate::config::pool::{POOL, default_pool};
use crate::config::{Cluster, Config, Volume, check, keys, state, units};
use crate::error::Result;
use engine::types::Policy;
use std::collections::BTreeSet;

impl Admin {
    /// Reads the file again and applies it.
    pub fn reload(&self) -> Result<Outcome> {
        let path = self.known().config.path.clone();
        let fresh = Config::load(&path)?.with_records()?;
        // An image that is unfit is told with its volume, and keeps no other as it was.
        check::check_apart(&fresh)?;
        self.machine.look_at_images();
        let _order = self.order();
        // First, so that wrong ones leave everything as it was.
        let certificates = self.machine.renew_certificates()?;
        let mut known = self.known().clone();
        let look = self.look()?;
        renew_members(&mut known, &look);
        let mut notes: Vec<String> = certificates.into_iter().collect();
        // Those that were added at run time may have got other defaults.
        let named = fresh.volumes.iter().cloned().chain(state::load(&fresh)?);
        let named: Vec<Volume> = named.collect();
        for volume in &named {
            notes.extend(self.reload_volume(&mut known, &look, volume));
        }
        let gone = |old: &&Volume| named.iter().all(|volume| volume.name != old.name);
        let gone: Vec<Volume> = known.volumes.iter().filter(gone).cloned().collect();
        for old in &gone {
            let (note, forgotten) = self.let_go(&look, old);
            notes.push(note);
            if forgotten {
                known.volumes.retain(|volume| volume.name != old.name);
            }
        }
        notes.extend(changed_sections(&known.config, &fresh));
        notes.extend(changed_pools(&known.config, &fresh));
        known.config.volumes = fresh.volumes;
        known.config.defaults = fresh.defaults;
        *self.known() = known;
        Ok(Outcome { notes })
    }

    fn reload_volume(&self, known: &mut Known, look: &Look, volume: &Volume) -> Option<String> {
        let name = &volume.name;
        let Some(at) = known.volumes.iter().position(|old| old.name == *name) else {
            let added = self.refuse_drained(name);
            let added = added.and_then(|()| self.machine.add_or_hold(volume.settings()));
            return Some(match added {
                Ok(held) => {
                    known.volumes.push(volume.clone());
                    match held {
                        None => format!("volume {name}: attached"),
                        // One image that does not open keeps no other volume away.
                        Some(why) => format!("held: {why}"),
                    }
                }
                Err(error) => format!("not attached: {error}"),
            });
        };
        if let Some(held) = look.held(name) {
            known.volumes[at] = volume.clone();
            return Some(self.retry(volume, held));
        }
        let old = &known.volumes[at];
        let changed = changed(keys::VOLUME, old, volume);
        let fixed = |key: &&str| *key != "policy" && !keys::TUNABLES.contains(key);
        let fixed: Vec<&str> = changed.iter().copied().filter(fixed).collect();
        let crosses = (old.policy == Policy::Ephemeral) != (volume.policy == Policy::Ephemeral);
        if changed.is_empty() {
            known.volumes[at] = volume.clone();
            return None;
        }
        if !fixed.is_empty() || crosses {
            let what = if fixed.is_empty() {
                vec!["policy"]
            } else {
                fixed
            }
            .join(", ");
            return Some(format!(
                "volume {name}: its {what} cannot change while it is attached; restart, or run \
                 `tenuto volume rm {name}` and reload again"
            ));
        }
        let applied = self.apply(volume, old.policy != volume.policy);
        Some(match applied {
            Ok(()) => {
                known.volumes[at] = volume.clone();
                format!("volume {name}: changed {}", changed.join(", "))
            }
            Err(error) => format!("not changed: {error}"),
        })
    }

    /// Tunables at once; another policy is ordered, and shows in the volume when it is in effect.
    fn apply(&self, volume: &Volume, switches: bool) -> Result<()> {
        self.machine.tune(volume.settings())?;
        let drained = self.is_drained() && volume.policy == Policy::WriteBack;
        if switches && !drained {
            let started = self.machine.switch(&volume.name, volume.policy)?;
            self.go_on("reload", Some(&volume.name), started);
        }
        Ok(())
    }

    /// What becomes of a volume that nobody names any more, and whether it is forgotten.
    fn let_go(&self, look: &Look, old: &Volume) -> (String, bool) {
        let name = &old.name;
        let gone = format!("volume {name}: is gone from the file");
        let Ok(snapshot) = find(look, name) else {
            return (gone, true);
        };
        let clients = look.clients.iter().find(|(id, _)| *id == snapshot.id);
        let clients = clients.map_or(0, |(_, clients)| *clients);
        let stays = match () {
            _ if look.held(name).is_some() => Some(format!(
                "{gone}, and held; it stays until `tenuto volume rm {name}`"
            )),
            _ if clients > 0 => Some(format!(
                "{gone}, but clients are connected ({clients}); it stays until they are gone and \
                 the file is reloaded"
            )),
            _ if old.policy == Policy::Ephemeral && snapshot.dirty_bytes > 0 => Some(format!(
                "{gone}; it stays with its overlay of {} until `tenuto volume rm {name}`",
                units::human_bytes(snapshot.dirty_bytes)
            )),
            _ => None,
        };
        if let Some(note) = stays {
            return (note, false);
        }
        if snapshot.dirty_bytes == 0 && self.machine.remove(name, false).is_ok() {
            return (format!("{gone}; detached"), true);
        }
        match self.machine.orphan(name) {
            Ok(()) => (
                format!(
                    "{gone}; its dirty data ({}) goes to the origin, then it is detached",
                    units::human_bytes(snapshot.dirty_bytes)
                ),
                true,
            ),
            Err(error) => (format!("{gone}, and stays: {error}"), false),
        }
    }
}

/// Keys outside of volumes that are other than the daemon was started with.
fn changed_sections(old: &Config, new: &Config) -> Vec<String> {
    let sections = [
        ("[host]", changed(keys::HOST, &old.host, &new.host)),
        ("[cache]", changed(keys::CACHE, &old.cache, &new.cache)),
        ("[listen]", changed(keys::LISTEN, &old.listen, &new.listen)),
        ("[images]", changed(keys::IMAGES, &old.images, &new.images)),
    ];
    let none = Cluster::default();
    let of = |config: &Config| config.cluster.clone().unwrap_or(none.clone());
    let cluster = changed(CLUSTER, &of(old), &of(new));
    let sections = sections.into_iter().chain([("[cluster]", cluster)]);
    let changed = sections.filter(|(_, keys)| !keys.is_empty());
    changed
        .map(|(section, keys)| {
            let keys = keys.join(", ");
            format!("{section} {keys}: the change needs a restart")
        })
        .collect()
}

/// Pools that are other than the daemon was started with. What image they have is no matter of the
/// file after their first refresh.
fn changed_pools(old: &Config, new: &Config) -> Vec<String> {
    let all = old.pools.iter().chain(&new.pools);
    let names: BTreeSet<&str> = all.map(|pool| pool.name.as_str()).collect();
    let none = default_pool();
    let notes = names.into_iter().filter_map(|name| {
        let (one, other) = (old.pool(name), new.pool(name));
        let keys = changed(POOL, one.unwrap_or(&none), other.unwrap_or(&none));
        let what = match (one, other) {
            (_, None) => "that it is gone".to_owned(),
            (None, _) => "that it is new".to_owned(),
            _ if keys == ["image"] => {
                return Some(format!(
                    "pool {name}: members go to another image by `tenuto pool refresh {name}`"
                ));
            }
            _ => keys.join(", "),
        };
        let needed = !keys.is_empty();
        needed.then(|| format!("[[pool]] {name}: {what}: the change needs a restart"))
    });
    notes.collect()
}

fn changed<T>(keys: &[keys::Key<T>], old: &T, new: &T) -> Vec<&'static str> {
    let differs = |key: &&keys::Key<T>| (key.show)(old) != (key.show)(new);
    keys.iter().filter(differs).map(|key| key.name).collect()
}
