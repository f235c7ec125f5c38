//! Files of every kind that users have or an attacker makes, each as the top of a volume that
//! writes it and of one that reads it: served, or refused with one line.
//!
//! Always true of each that is refused: the line names the file, says what is wrong and what
//! helps; a command in it is run as it stands there, and makes an image that is served; the file is
//! as it was and nothing lies beside it; the other volumes of the daemon go on. What is served
//! reads as QEMU reads it.

mod kinds;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::nbd::{Client, EIO};
use crate::common::{EXIT_DAMAGE, EXIT_REFUSED, Rig, have, run, text_of};
use crate::qcow2_written::{convert, create, shown, write};
use kinds::Answer::{Helped, Refused, Served};
use kinds::Make::{Over, Patched, Unstated};
use kinds::{Answer, Kind, PLAIN, SERVED, TORN, Torn, all, kind, over, plain};

impl Kind {
    /// One volume on this image; what is not as it should be.
    fn is_answered(&self, bench: &Bench, keys: &[&str], answer: Answer) -> Result<(), String> {
        let image = self.image(&bench.images);
        let before = fs::read(&image).unwrap();
        let output = bench.add(&image, self.format, keys);
        let said = text_of(&output);
        let (code, help) = match answer {
            Served => return bench.is_served(&image, self.format, &said, output.status.code()),
            Refused(code, help) => (code, help.to_owned()),
            Helped(code, command) => (code, format!("`{command}`")),
        };
        if output.status.code() != Some(code) {
            return Err(format!("ended with another code than {code}: {said}"));
        }
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        let help = bench.filled(&help, &image);
        for part in [self.cause, &help, &shown(&image)] {
            // A file below is named by itself.
            let below = part == shown(&image) && matches!(self.make, Over(..) | Unstated(_));
            if !line.contains(part) && !below && !self.name.starts_with("deep") {
                return Err(format!("{part:?} is missing in: {line}"));
            }
        }
        if line.lines().count() != 1 || !line.starts_with("tenuto: ") {
            return Err(format!("is not one line: {line}"));
        }
        if fs::read(&image).unwrap() != before {
            return Err("the file was changed".into());
        }
        if Path::new(&format!("{}.tenuto", image.display())).exists() {
            return Err("there is a ledger beside it".into());
        }
        match answer {
            Helped(_, command) => bench.is_helped(&image, command, keys),
            Served | Refused(..) => Ok(()),
        }
    }
}

/// A daemon with one good volume.
struct Bench {
    rig: Rig,
    images: PathBuf,
}

impl Bench {
    fn new() -> Bench {
        let mut rig = Rig::new();
        let images = rig.dir.join("images");
        let outside = rig.dir.join("outside");
        for dir in [&images, &outside] {
            fs::create_dir(dir).unwrap();
            plain(&dir.join("base.qcow2"), PLAIN);
        }
        std::os::unix::fs::symlink(outside.join("base.qcow2"), images.join("link.qcow2")).unwrap();
        let base = images.join("base.qcow2");
        convert(("qcow2", &base), ("raw", &images.join("base.raw")), &[]);
        over(&images.join("middle.qcow2"), "base.qcow2", "qcow2");
        for (name, size) in [("longer.qcow2", "12M"), ("shorter.qcow2", "5244416")] {
            let image = create(&images, name, &[size]);
            write(&image, "qcow2", &["write -P 3 4M 1M"]);
        }
        let good = rig.image("good.img", 1 << 20);
        rig.volume("good", &good, "write-back", "");
        rig.section(&format!("[images]\nallow = [\"{}\"]\n", images.display()));
        Bench { rig, images }
    }

    fn filled(&self, text: &str, image: &Path) -> String {
        let text = text.replace("IMAGE", &shown(image));
        text.replace("DIR", &shown(&self.images))
    }

    fn add(&self, image: &Path, format: Option<&str>, keys: &[&str]) -> Output {
        self.add_as("w", image, format, keys)
    }

    fn add_as(&self, volume: &str, image: &Path, format: Option<&str>, keys: &[&str]) -> Output {
        let origin = format!("origin={}", image.display());
        let format = format.map(|format| format!("format={format}"));
        let mut add = vec!["volume", "add", volume, &origin, "export=nbd"];
        add.extend(format.as_deref());
        add.extend(keys);
        self.rig.tenuto(&add)
    }

    fn is_served(
        &self,
        image: &Path,
        format: Option<&str>,
        said: &str,
        code: Option<i32>,
    ) -> Result<(), String> {
        if code != Some(0) {
            return Err(format!("is not served: {said}"));
        }
        let format = format.unwrap_or("qcow2");
        let output = Command::new("qemu-img")
            .args(["compare", "-U", "-f", "raw", "-F", format])
            .arg(self.rig.uri("w"))
            .arg(image)
            .output()
            .expect("it is installed");
        // Its end may be noticed later than it has ended.
        self.rig.gone_clients("w");
        self.rig.done(&["volume", "rm", "w"]);
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("is not what QEMU reads: {}", text_of(&output))),
        }
    }

    /// The command is run as the line has it, with names where it has words for them.
    fn is_helped(&self, image: &Path, command: &str, keys: &[&str]) -> Result<(), String> {
        let copy = image.with_extension("copy");
        let base = shown(&self.images.join("base.qcow2"));
        let command = self.filled(command, image);
        let words: Vec<&str> = command
            .split(' ')
            .map(|word| match word {
                "COPY" => copy.to_str().unwrap(),
                "BITMAP" => "b0",
                "FILE" => &base,
                "FORMAT" => "qcow2",
                other => other,
            })
            .collect();
        let (program, arguments) = words.split_first().unwrap();
        run(program, arguments);
        let image = match words.contains(&copy.to_str().unwrap()) {
            true => &copy,
            false => image,
        };
        let output = self.add(image, None, keys);
        let said = format!("`{command}` does not help: {}", text_of(&output));
        self.is_served(image, None, &said, output.status.code())
    }

    /// Another volume answers.
    fn goes_on(&self, client: &mut Client, byte: u8) {
        client.write(4096, &[byte; 4096]);
        client.flush();
        assert_eq!(client.read(4096, 4096), [byte; 4096]);
    }
}

/// Fails when: a field of a header is believed, a file is followed that should not be, or a line
/// gives no command, or one that does not help.
#[test]
fn each_kind_of_image_is_served_or_refused_with_one_line_that_helps() {
    let test = "each_kind_of_image_is_served_or_refused_with_one_line_that_helps";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let bench = Bench::new();
    let daemon = bench.rig.serve();
    let mut client = bench.rig.connect("good");
    let (mut wrong, mut kinds, mut refused) = (Vec::new(), 0, 0);
    for kind in all() {
        for (keys, answer) in [
            (&["policy=uncached", "read-only=true"][..], kind.read),
            (&["policy=write-back"], kind.written),
        ] {
            if let Err(what) = kind.is_answered(&bench, keys, answer) {
                wrong.push(format!("{} {keys:?}: {what}", kind.name));
                bench.rig.tenuto(&["volume", "rm", "w"]);
            }
            bench.goes_on(&mut client, kinds as u8);
        }
        kinds += 1;
        refused += u32::from(!matches!(kind.written, Served));
    }
    eprintln!("{kinds} kinds, {refused} of them are not written");
    assert!(
        wrong.is_empty(),
        "{} are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    client.disconnect();
    daemon.stop();
}

/// Fails when: an image that is refused keeps a daemon from its start, or from its other volumes.
#[test]
fn a_daemon_that_starts_with_wrong_images_holds_their_volumes_and_serves_the_others() {
    let test = "a_daemon_that_starts_with_wrong_images_holds_their_volumes_and_serves_the_others";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut bench = Bench::new();
    let mut held = Vec::new();
    let images = bench.images.clone();
    for kind in all() {
        let image = kind.image(&images);
        if !matches!(kind.written, Served) && kind.format.is_none() {
            bench
                .rig
                .volume_of(kind.name, (&image, "auto"), "write-back", "");
            held.push((kind, fs::read(&image).unwrap()));
        }
    }
    let daemon = bench.rig.serve();
    let mut client = bench.rig.connect("good");
    bench.goes_on(&mut client, 7);
    let told = text_of(&bench.rig.tenuto(&["status", "-x"]));
    for (kind, before) in &held {
        let name = kind.name;
        let shown = bench.rig.show(name);
        assert_eq!(shown["state"], "held", "{name}: {shown}");
        assert!(told.contains(name), "{name} is missing in: {told}");
        assert!(
            fs::read(images.join(name)).unwrap() == *before,
            "{name} was changed"
        );
    }
    eprintln!("{} volumes are held", held.len());
    client.disconnect();
    daemon.stop();
}

/// Fails when: an entry that contradicts the rest of the file is written by, or stops more than the
/// destage of its volume.
#[test]
fn an_image_with_wrong_tables_is_not_written_by_them_and_its_line_says_what_helps() {
    let test = "an_image_with_wrong_tables_is_not_written_by_them_and_its_line_says_what_helps";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let bench = Bench::new();
    let daemon = bench.rig.serve();
    let mut good = bench.rig.connect("good");
    let mut wrong = Vec::new();
    for (number, torn) in TORN.iter().enumerate() {
        if let Err(what) = is_torn(&bench, torn) {
            wrong.push(format!("{}: {what}", torn.0));
        }
        bench.goes_on(&mut good, number as u8);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    good.disconnect();
    daemon.stop();
}

/// A volume on an image with wrong tables; what is not as it should be.
fn is_torn(bench: &Bench, torn: &Torn) -> Result<(), String> {
    let (name, options, patches, readable) = *torn;
    let kind = kind(name, Patched(options, patches), "", SERVED);
    let image = kind.image(&bench.images);
    let before = fs::read(&image).unwrap();
    let raw = image.with_extension("raw");
    if readable {
        convert(("qcow2", &image), ("raw", &raw), &[]);
    }
    let keys = ["policy=write-back", "destage-after=never"];
    let output = bench.add_as(name, &image, None, &keys);
    assert!(output.status.success(), "{name}: {}", text_of(&output));
    let mut client = bench.rig.connect(name);
    let mut bytes = vec![0; 65536];
    match (client.try_read(0, &mut bytes), readable) {
        (Ok(()), true) if bytes[..] == fs::read(&raw).unwrap()[..65536] => {}
        (Err(EIO), false) => {}
        (read, _) => return Err(format!("{read:?}, or other bytes than QEMU reads")),
    }
    client.write(4096, &[9; 4096]);
    client.flush();
    let line = bench
        .rig
        .refused(&["volume", "destage", name, "--wait"], EXIT_DAMAGE);
    let helps = "contradict each other; look at it with `qemu-img check -U`";
    if !line.contains(helps) || line.lines().count() != 1 {
        return Err(format!("{helps:?} is missing in: {line}"));
    }
    assert_eq!(bench.rig.show(name)["state"], "stalled", "{name}");
    assert_eq!(client.read(4096, 4096), [9; 4096], "{name}");
    client.disconnect();
    bench.rig.gone_clients(name);
    bench.rig.refused(&["volume", "rm", name], EXIT_REFUSED);
    let named = format!("--discard-dirty={name}");
    bench.rig.done(&["volume", "rm", name, &named]);
    let after = fs::read(&image).unwrap();
    match after.starts_with(&before) {
        true => Ok(()),
        false => Err("what its tables refer to was written".into()),
    }
}
