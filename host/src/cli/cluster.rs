//! `tenuto cluster`: making a cluster, joining, checking and leaving it, and forgetting hosts.
//!
//! Always true: `init` and `join` change this host's files only, and say that the daemon reads them
//! when it starts; `token`, `check`, `leave` and `forget` ask the running daemon.

use super::{Context, output};
use crate::admin::client::PATIENT;
use crate::cluster::tokens::Token;
use crate::cluster::{identity, join};
use crate::config::cluster::{self, Cluster};
use crate::config::{Config, Wrong};
use crate::error::{Error, Kind, Result};
use crate::vault::{self, Vault};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::net::SocketAddr;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a cluster of this host: its authority, certificates and section of the configuration
    Init(Init),
    /// Print a token with which one host can join within 15 minutes
    Token,
    /// Join the cluster that has issued a token
    Join(Join),
    /// Try links, ports, versions, clocks, vault and fence; ends with code 1 if anything is wrong
    Check,
    /// Take this host out of its cluster
    Leave,
    /// Take a host that is gone for good off the list of members
    Forget(Forget),
}

#[derive(Debug, Args)]
pub struct Init {
    /// Name of the cluster
    name: String,
    /// Where other hosts reach this one, as in 10.0.0.1:7440; several are separated by commas
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', required = true)]
    listen: Vec<String>,
    /// Where records of owners lie: beside each image, dir:PATH on shared storage, etcd://HOST:PORT
    #[arg(long, value_name = "VAULT", default_value = "beside")]
    vault: String,
    /// Fault domain of this host, as a rack
    #[arg(long, value_name = "DOMAIN", default_value = "")]
    domain: String,
}

#[derive(Debug, Args)]
pub struct Forget {
    /// Name of the host, as `tenuto peer ls` shows it
    host: String,
}

#[derive(Debug, Args)]
pub struct Join {
    /// What `tenuto cluster token` has printed on a member
    token: String,
    /// Where other hosts reach this one, as in 10.0.0.2:7440; several are separated by commas
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', required = true)]
    listen: Vec<String>,
    /// Fault domain of this host, as a rack
    #[arg(long, value_name = "DOMAIN", default_value = "")]
    domain: String,
}

pub fn run(context: &Context, command: Command) -> Result<()> {
    match command {
        Command::Init(command) => init(context, &command),
        Command::Token => token(context),
        Command::Join(command) => join_cluster(context, &command),
        Command::Check => check(context),
        Command::Leave => leave(context),
        Command::Forget(command) => forget(context, &command.host),
    }
}

fn usage(option: &str) -> impl Fn(Wrong) -> Error {
    move |wrong| {
        let message = format!("{option}: {}; {}", wrong.what, wrong.right);
        match wrong.later {
            true => Error::new(Kind::NotInThisVersion, message),
            false => Error::usage(message),
        }
    }
}

fn listen(list: &[String]) -> Result<Vec<SocketAddr>> {
    cluster::addresses(list).map_err(usage("--listen"))
}

fn init(context: &Context, command: &Init) -> Result<()> {
    let config = context.load()?;
    let made = Cluster {
        name: cluster::cluster_name(&command.name).map_err(usage("name"))?,
        listen: listen(&command.listen)?,
        vault: Vault::parse(&command.vault)
            .map_err(Wrong::from)
            .map_err(usage("--vault"))?,
        domain: cluster::domain(&command.domain).map_err(usage("--domain"))?,
        ..Cluster::default()
    };
    vault::begin(&made.vault)
        .map_err(|why| Error::usage(format!("--vault: {}: {why}", made.vault.show())))?;
    let id = join::init(&config, &made)?;
    let document = json!({
        "cluster": made.name,
        "host": config.host.name,
        "id": id.to_string(),
        "directory": identity::directory(&config.host.state_dir).display().to_string(),
    });
    context.output().confirmation(&document, || {
        format!(
            "cluster {}: made, with host {} ({id})\nrestart the daemon, then let others in with \
             `tenuto cluster token`\n",
            made.name, config.host.name
        )
    })
}

fn token(context: &Context) -> Result<()> {
    let document = context.client()?.post("/v1/cluster/token", None, PATIENT)?;
    let token = document["token"].as_str().unwrap_or("").to_owned();
    context.output().document(&document, || token + "\n")
}

fn join_cluster(context: &Context, command: &Join) -> Result<()> {
    let config = context.load()?;
    let token = Token::parse(&command.token).ok_or_else(|| {
        Error::usage("token: is none; copy the whole line that `tenuto cluster token` has printed")
    })?;
    let domain = cluster::domain(&command.domain).map_err(usage("--domain"))?;
    let joined = join::join(&config, &token, listen(&command.listen)?, domain)?;
    let members: Vec<&str> = joined.members.iter().map(|it| it.name.as_str()).collect();
    let document = json!({
        "cluster": joined.cluster.name,
        "host": config.host.name,
        "id": joined.host.to_string(),
        "vault": joined.cluster.vault.show(),
        "members": members,
    });
    context.output().confirmation(&document, || {
        format!(
            "cluster {}: joined by host {} ({}); other members: {}\nrestart the daemon, then run \
             `tenuto cluster check`\n",
            joined.cluster.name,
            config.host.name,
            joined.host,
            members.join(", ")
        )
    })
}

fn check(context: &Context) -> Result<()> {
    let document = context.client()?.post("/v1/cluster/check", None, PATIENT)?;
    context.output().document(&document, || {
        let findings = document["findings"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let rows: Vec<Vec<String>> = findings.iter().map(row).collect();
        output::table(&["", "CHECK", "OF", "RESULT"], &rows, &[])
    })?;
    match document["ok"] == true {
        true => Ok(()),
        // The lines above say it all.
        false => Err(Error {
            kind: Kind::Failed,
            message: String::new(),
            object: None,
        }),
    }
}

fn row(finding: &Value) -> Vec<String> {
    let text = |key: &str| finding[key].as_str().unwrap_or("-").to_owned();
    let mark = if finding["ok"] == true { "ok" } else { "wrong" };
    vec![mark.into(), text("check"), text("object"), text("text")]
}

fn leave(context: &Context) -> Result<()> {
    let config = context.load()?;
    refuse_no_member(&config)?;
    let told = match config.cluster {
        Some(_) => tell_others(context)?,
        // The section is gone already; what is left is to be forgotten.
        None => json!({ "told": [], "not_told": [] }),
    };
    join::forget(&config)?;
    context
        .output()
        .confirmation(&told, || text_of_left(&config.host.name, &told))
}

fn text_of_left(host: &str, told: &Value) -> String {
    let names = |key: &str| {
        let names = told[key].as_array().map_or(&[][..], Vec::as_slice);
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        names.join(", ")
    };
    let mut text = format!("host {host}: is no member any more\n");
    if !names("told").is_empty() {
        text.push_str(&format!("told: {}\n", names("told")));
    }
    if !names("not_told").is_empty() {
        let line = "they hear it from the other members";
        text.push_str(&format!("not told: {}; {line}\n", names("not_told")));
    }
    text
}

fn forget(context: &Context, host: &str) -> Result<()> {
    let client = context.client()?;
    let told = client.delete(&format!("/v1/peers/{host}"), PATIENT)?;
    context
        .output()
        .confirmation(&told, || text_of_left(host, &told))
}

fn tell_others(context: &Context) -> Result<Value> {
    context.client()?.post("/v1/cluster/leave", None, PATIENT)
}

fn refuse_no_member(config: &Config) -> Result<()> {
    if config.cluster.is_some() || identity::exists(&config.host.state_dir) {
        return Ok(());
    }
    let path = config.path.display().to_string();
    Err(Error::failed(format!("{path}: this host is in no cluster")).about(path))
}
