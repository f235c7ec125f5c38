//! In which order a kernel's modules are loaded, by the index beside them.
//!
//! Owns the reading of `modules.dep` and `modules.builtin` (depmod, modules.dep(5)). Always true:
//! a module comes after all it depends on, once; a line that is none of theirs is passed over.

use std::collections::{BTreeMap, BTreeSet};

pub struct Index {
    /// Path of each module, by its name, and the paths of what it needs.
    modules: BTreeMap<String, (String, Vec<String>)>,
    builtin: BTreeSet<String>,
}

/// A module's name: the file's without directory and ending; `-` and `_` are one.
pub fn name(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file)
}

fn key(path: &str) -> String {
    name(path).replace('-', "_")
}

impl Index {
    pub fn new(dependencies: &str, builtin: &str) -> Index {
        let mut modules = BTreeMap::new();
        for line in dependencies.lines() {
            let Some((path, needs)) = line.split_once(':') else {
                continue;
            };
            let needs = needs.split_whitespace().map(str::to_owned).collect();
            modules.insert(key(path), (path.to_owned(), needs));
        }
        Index {
            modules,
            builtin: builtin.lines().map(|line| key(line.trim())).collect(),
        }
    }

    /// The paths of what has to be loaded for these drivers; `Err` names one that is not there.
    pub fn load_order<'a>(&self, drivers: &[&'a str]) -> Result<Vec<String>, &'a str> {
        let mut order: Vec<String> = Vec::new();
        for &driver in drivers {
            let Some((path, needs)) = self.modules.get(&key(driver)) else {
                if self.builtin.contains(&key(driver)) {
                    continue;
                }
                return Err(driver);
            };
            // The index names what is needed last first.
            for path in needs.iter().rev().chain([path]) {
                if !order.contains(path) {
                    order.push(path.clone());
                }
            }
        }
        Ok(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDENCIES: &str = "\
kernel/drivers/block/virtio_blk.ko.xz: kernel/virtio/virtio.ko.xz kernel/virtio/virtio_ring.ko.xz
kernel/virtio/virtio.ko.xz: kernel/virtio/virtio_ring.ko.xz
kernel/virtio/virtio_ring.ko.xz:
kernel/lib/crc32c-generic.ko:
no colon here
";

    #[test]
    fn a_module_comes_after_what_it_needs_and_once() {
        let index = Index::new(DEPENDENCIES, "kernel/fs/ext4/ext4.ko\n");
        let order = index.load_order(&["virtio", "virtio_blk", "ext4"]);
        let order = order.expect("all are there");
        let names: Vec<&str> = order.iter().map(|path| name(path)).collect();
        assert_eq!(names, ["virtio_ring", "virtio", "virtio_blk"]);
        assert_eq!(
            index.load_order(&["crc32c_generic"]).map(|it| it.len()),
            Ok(1)
        );
    }

    #[test]
    fn a_driver_that_is_nowhere_is_named() {
        let index = Index::new(DEPENDENCIES, "");
        assert_eq!(index.load_order(&["virtio", "ext4"]), Err("ext4"));
    }
}
