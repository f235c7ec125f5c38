//! `tenuto man`: the manual pages, made of what the program itself says.
//!
//! Owns the pages tenuto(1), one for each command, and tenuto.toml(5). Always true: they come from
//! the same tables as `--help` and `config --explain`, so no option and no key can be missing or
//! described twice; they carry no date, so the same program makes the same pages. Deliberately
//! absent: prose about how it works, which is in the documents.

use crate::examples;
use clap::Args;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use host::cli::{Context, output};
use host::config::keys::{self, Key};
use host::error::{Error, Result, cause};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct Pages {
    /// Write all pages into this directory instead of tenuto(1) to standard output
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// One page, ready to be written.
struct Page {
    file: String,
    text: Vec<u8>,
}

pub fn run(context: &Context, command: &Pages) -> Result<()> {
    let pages = pages()?;
    let Some(directory) = &command.dir else {
        // The last one is the program's own.
        let main = pages.last().map(|page| page.text.clone());
        return output::write(&String::from_utf8_lossy(&main.unwrap_or_default()));
    };
    let failed = |path: &Path, error: &std::io::Error| {
        Error::failed(format!("{}: {}", path.display(), cause(error)))
    };
    std::fs::create_dir_all(directory).map_err(|error| failed(directory, &error))?;
    for page in &pages {
        let path = directory.join(&page.file);
        std::fs::write(&path, &page.text).map_err(|error| failed(&path, &error))?;
    }
    let names: Vec<&str> = pages.iter().map(|page| page.file.as_str()).collect();
    let document = json!({ "directory": directory.display().to_string(), "pages": names });
    context.output().confirmation(&document, || {
        format!("{}: {} manual pages\n", directory.display(), names.len())
    })
}

/// All pages; tenuto(1) is the last.
fn pages() -> Result<Vec<Page>> {
    let mut command = crate::command().disable_help_subcommand(true);
    command.build();
    let mut pages = vec![Page {
        file: "tenuto.toml.5".into(),
        text: configuration().to_roff().into_bytes(),
    }];
    below(&command, &mut pages)?;
    Ok(pages)
}

/// A command's page after those of the commands below it.
fn below(command: &clap::Command, pages: &mut Vec<Page>) -> Result<()> {
    for inner in command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
    {
        below(inner, pages)?;
    }
    pages.push(page(command)?);
    Ok(())
}

fn page(command: &clap::Command) -> Result<Page> {
    let is_main = command.get_name() == "tenuto";
    let source = format!("tenuto {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(source).manual("Tenuto");
    let mut text = Vec::new();
    let mut render = || -> std::io::Result<()> {
        man.render_title(&mut text)?;
        man.render_name_section(&mut text)?;
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        man.render_options_section(&mut text)?;
        if command.get_subcommands().any(|inner| !inner.is_hide_set()) {
            man.render_subcommands_section(&mut text)?;
        }
        let mut end = Roff::new();
        examples_of(command, &mut end);
        if is_main {
            conventions(&mut end);
        }
        see_also(&mut end, is_main);
        end.to_writer(&mut text)
    };
    let file = man.get_filename();
    render().map_err(|error| Error::failed(format!("{file}: {}", cause(&error))))?;
    Ok(Page { file, text })
}

fn examples_of(command: &clap::Command, roff: &mut Roff) {
    let help = command.get_after_help().map(ToString::to_string);
    let lines = help
        .as_deref()
        .and_then(|help| help.strip_prefix(examples::HEAD));
    let Some(lines) = lines else {
        return;
    };
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    for line in lines.trim_start().lines() {
        roff.text([roman(line.trim())]);
    }
    roff.control("fi", []);
}

/// What holds for every command.
fn conventions(roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in [
        ("0", "done"),
        ("1", "failed"),
        ("2", "wrong usage or configuration"),
        ("3", "the daemon is not reachable"),
        (
            "4",
            "refused, because it would lose data or disturb a guest; the message names the flag \
             that forces it, where there is one",
        ),
        ("5", "damage found"),
    ] {
        item(roff, code, "", meaning);
    }
    roff.control("SH", ["ENVIRONMENT"]);
    item(roff, "TENUTO_CONFIG", "", "the configuration file");
    item(roff, "TENUTO_SOCKET", "", "the admin socket of the daemon");
    item(
        roff,
        "NO_COLOR",
        "",
        "if set, no colours unless --color=always",
    );
    roff.control("SH", ["FILES"]);
    for (file, meaning) in [
        (
            "/etc/tenuto/tenuto.toml",
            "configuration, see tenuto.toml(5)",
        ),
        ("/run/tenuto/tenuto.sock", "admin socket: HTTP and JSON"),
        (
            "/run/tenuto/nbd.sock",
            "all volumes over NBD; VOLUME.nbd.sock beside it is one of them",
        ),
        (
            "IMAGE.tenuto, IMAGE.tenuto-journal",
            "ledger and journal beside an origin",
        ),
    ] {
        item(roff, file, "", meaning);
    }
}

fn see_also(roff: &mut Roff, is_main: bool) {
    roff.control("SH", ["SEE ALSO"]);
    let mut names = vec![bold("tenuto.toml"), roman("(5)")];
    if !is_main {
        names.splice(0..0, [bold("tenuto"), roman("(1), ")]);
    }
    roff.text(names);
}

/// A name, what it is by default, and what it means.
fn item(roff: &mut Roff, name: &str, default: &str, meaning: &str) {
    roff.control("TP", []);
    let mut head = vec![bold(name)];
    if !default.is_empty() {
        head.extend([roman(" = "), italic(default)]);
    }
    roff.text(head);
    roff.text([roman(meaning)]);
}

fn section<T>(roff: &mut Roff, name: &str, words: &str, keys: &[Key<T>]) {
    roff.control("SH", [name]);
    roff.text([roman(words)]);
    for key in keys {
        item(roff, key.name, key.default, key.meaning);
    }
}

/// tenuto.toml(5).
fn configuration() -> Roff {
    let mut roff = Roff::new();
    let source = format!("tenuto {}", env!("CARGO_PKG_VERSION"));
    roff.control("TH", ["tenuto.toml", "5", "", &source, "Tenuto"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("tenuto.toml - configuration of tenuto")]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(
        "A TOML file: /etc/tenuto/tenuto.toml, or the one that -c or $TENUTO_CONFIG names. Sizes \
         take K, M, G and T or KiB, MiB, GiB and TiB, which is the same, times take ms, s, m, h \
         and d. An unknown key is an error, and nothing is started. `tenuto config --check` \
         checks a file, `tenuto config --explain` shows the value of every key and where it comes \
         from, `tenuto reload` applies a changed file. The default follows each name.",
    )]);
    section(&mut roff, "[host]", "The host and its places.", keys::HOST);
    section(
        &mut roff,
        "[cache]",
        "The cache and its memory.",
        keys::CACHE,
    );
    section(
        &mut roff,
        "[listen]",
        "TCP, beside the sockets.",
        keys::LISTEN,
    );
    section(
        &mut roff,
        "[images]",
        "Images that others stand on.",
        keys::IMAGES,
    );
    section(
        &mut roff,
        "[[volume]]",
        "One section for each volume. In [defaults] the same keys, without name and origin, hold \
         for all volumes that do not say otherwise.",
        keys::VOLUME,
    );
    roff.control("SH", ["EXAMPLE"]);
    roff.control("nf", []);
    for line in [
        "[cache]",
        "path = \"/var/lib/tenuto/cache\"",
        "size = \"64GiB\"",
        "",
        "[[volume]]",
        "name = \"desk-001\"",
        "origin = \"/mnt/nfs/vms/desk-001.img\"",
        "format = \"raw\"",
        "policy = \"write-back\"",
    ] {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("tenuto"), roman("(1)")]);
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(file: &str) -> String {
        let pages = pages().expect("pages of memory");
        let page = pages.into_iter().find(|page| page.file == file);
        let text = String::from_utf8(page.unwrap_or_else(|| panic!("no {file}")).text);
        text.expect("UTF-8").replace('\\', "")
    }

    #[test]
    fn every_command_has_a_page_and_the_configuration_has_every_key() {
        for (file, word) in [
            ("tenuto.1", "EXIT STATUS"),
            ("tenuto-volume.1", "destage"),
            ("tenuto-volume-destage.1", "--wait"),
            ("tenuto-cache-create.1", "--force"),
        ] {
            assert!(text_of(file).contains(word), "{word} in {file}");
        }
        let configuration = text_of("tenuto.toml.5");
        let names = |keys: Vec<&'static str>| keys.into_iter();
        for name in names(keys::HOST.iter().map(|key| key.name).collect())
            .chain(names(keys::CACHE.iter().map(|key| key.name).collect()))
            .chain(names(keys::VOLUME.iter().map(|key| key.name).collect()))
        {
            assert!(configuration.contains(&format!("fB{name}fR")), "{name}");
        }
    }
}
