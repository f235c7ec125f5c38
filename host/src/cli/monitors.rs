//! What a user pastes to give volumes to a guest of Cloud Hypervisor or Firecracker.
//!
//! Owns the spelling of both. Always true: as in `attach`, what is printed is what is pasted, and a
//! name or path with any letter in it stays what it is or is refused. Two volumes never get one
//! drive of Firecracker, which would drop the first one without a word. Firecracker is told that
//! the disk has a write cache, because without that its guest sends no flush at all.
//! Deliberately absent: NBD, which neither speaks.

use super::attach::{Disk, DiskName, Pasted, mebibytes, shell};
use crate::error::{Error, Result};
use serde_json::json;

/// Cloud Hypervisor refuses more queues than the guest has processors, and one is its default.
const QUEUES: u16 = 1;
/// Its default as well.
const QUEUE_SIZE: u16 = 128;
/// What Firecracker takes as the name of a drive.
const DRIVE_CHARS_MAX: usize = 64;

/// The arguments for Cloud Hypervisor, for a guest with so much memory.
pub fn cloud_hypervisor(disks: &[Disk], memory_bytes: u64) -> Result<Pasted> {
    let size = mebibytes(memory_bytes)?;
    let mut arguments = vec![
        "--memory".into(),
        format!("size={size},shared=on"),
        "--disk".into(),
    ];
    for disk in disks {
        let socket = option_value(disk, disk.rings_for("Cloud Hypervisor")?)?;
        arguments.push(format!(
            "vhost_user=on,socket={socket},num_queues={QUEUES},queue_size={QUEUE_SIZE}"
        ));
    }
    let quoted: Vec<String> = arguments.iter().map(|it| shell(it)).collect();
    let line = quoted.join(" ");
    let notes = vec![
        "--memory and --disk stand once for each guest; its other disks follow behind --disk"
            .into(),
        "num_queues: at most the processors of --cpus boot=N, or the guest is refused".into(),
        "huge pages: add hugepages=on to --memory, if vm.nr_hugepages has enough of them".into(),
    ];
    Ok(Pasted {
        document: json!({ "cloud_hypervisor": line, "arguments": arguments, "notes": notes }),
        text: format!("{line}\n"),
        notes,
    })
}

/// One value of Cloud Hypervisor's options: commas go between double quotes.
fn option_value(disk: &Disk, socket: &str) -> Result<String> {
    if let Some(letter) = socket.chars().find(|letter| "\"[]".contains(*letter)) {
        return Err(Error::failed(format!(
            "volume {}: the path of its socket has the letter {letter:?}, which has a meaning of \
             its own for Cloud Hypervisor; use another run-dir",
            disk.name()
        ))
        .about(disk.name()));
    }
    Ok(match socket.contains(',') {
        true => format!("\"{socket}\""),
        false => socket.into(),
    })
}

/// The requests to the API of Firecracker, one for each disk. The first volume is the root device
/// where it is the first disk of the guest.
pub fn firecracker(disks: &[Disk], first: &DiskName) -> Result<Pasted> {
    let (mut drives, mut text) = (Vec::new(), String::new());
    for (at, disk) in disks.iter().enumerate() {
        let id = drive_id(disk.name());
        let drive = json!({
            "drive_id": id,
            "socket": disk.rings_for("Firecracker")?,
            "is_root_device": at == 0 && first.is_first(),
            "cache_type": "Writeback",
        });
        text += &format!(
            "curl --fail-with-body --unix-socket \"$FIRECRACKER\" -X PUT \
             http://localhost/drives/{id} -H 'Content-Type: application/json' -d {}\n",
            shell(&drive.to_string())
        );
        drives.push(drive);
    }
    let notes = vec![
        "FIRECRACKER is the path of the API socket of this microVM; ask before InstanceStart"
            .into(),
        "in a file for --config-file: --json prints the elements of \"drives\"".into(),
        "Firecracker does not connect again: a restart of the daemon ends the disk of its guest"
            .into(),
    ];
    Ok(Pasted {
        document: json!({ "firecracker": text, "drives": drives, "notes": notes }),
        text,
        notes,
    })
}

/// Letters, digits and `_`. `-` becomes `_` where the name has no other letter to replace; else a
/// checksum keeps apart what would become the same.
fn drive_id(name: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric();
    let replaced = name.replace(|letter| !plain(letter), "_");
    let is_reversible = name.chars().all(|letter| plain(letter) || letter == '-');
    if is_reversible && name.len() <= DRIVE_CHARS_MAX {
        return replaced;
    }
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, name.as_bytes());
    let start: String = replaced.chars().take(DRIVE_CHARS_MAX - 9).collect();
    format!("{start}_{sum:08x}")
}

#[cfg(test)]
mod tests {
    use super::super::attach::tests::disk;
    use super::*;

    #[test]
    fn cloud_hypervisor_gets_one_memory_and_all_disks_behind_one_option() {
        let disks = ["a", "b"].map(|name| disk(name, "/run/x, y"));
        let said = cloud_hypervisor(&disks, 1 << 30).expect("arguments");
        assert_eq!(
            said.text,
            "--memory size=1024M,shared=on --disk \
             'vhost_user=on,socket=\"/run/x, y/a.vhost.sock\",num_queues=1,queue_size=128' \
             'vhost_user=on,socket=\"/run/x, y/b.vhost.sock\",num_queues=1,queue_size=128'\n"
        );
        let said = cloud_hypervisor(&[disk("a", "/run/[0]")], 1 << 30).expect_err("a bracket");
        assert!(said.message.contains("use another run-dir"), "{said}");
        assert!(cloud_hypervisor(&disks, 1).is_err());
    }

    #[test]
    fn firecracker_boots_from_the_first_disk_and_its_guests_flush() {
        let disks = ["desk-001", "data"].map(|name| disk(name, "/run/it's"));
        let roots = |first: &str| {
            let first = DiskName::parse(first).expect("a target");
            let said = firecracker(&disks, &first).expect("requests");
            let drives = said.document["drives"].as_array().expect("a list").clone();
            let roots: Vec<bool> = drives
                .iter()
                .map(|it| it["is_root_device"] == true)
                .collect();
            assert!(drives.iter().all(|it| it["cache_type"] == "Writeback"));
            (roots, said)
        };
        assert_eq!(roots("vdb").0, [false, false]);
        let (is_root, said) = roots("vda");
        assert_eq!(is_root, [true, false]);
        assert_eq!(said.text.lines().count(), 2, "{}", said.text);
        assert!(
            said.text.contains("http://localhost/drives/desk_001 "),
            "{}",
            said.text
        );
        assert!(
            said.text.contains(r"/run/it'\''s/data.vhost.sock"),
            "{}",
            said.text
        );
    }

    #[test]
    fn drives_are_apart_and_their_names_are_what_firecracker_takes() {
        let long = "n".repeat(65);
        let names = [
            "a-b",
            "a_b",
            "a.b",
            "a--b",
            "a-_b",
            "a_-b",
            &long,
            &long[1..],
        ];
        let ids: std::collections::BTreeSet<String> = names.map(drive_id).into();
        assert_eq!(ids.len(), names.len(), "{ids:?}");
        let fits = |id: &String| {
            let letters = |it: char| it.is_ascii_alphanumeric() || it == '_';
            id.chars().all(letters) && id.len() <= DRIVE_CHARS_MAX
        };
        assert!(ids.iter().all(fits), "{ids:?}");
        assert_eq!(drive_id("desk-001"), "desk_001");
    }
}
