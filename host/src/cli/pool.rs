//! `tenuto pool`: clones of one image that are refreshed together.
//!
//! Owns how the documents of the daemon look. Deliberately absent: what a refresh is, which the
//! daemon says.

use super::arguments::latency;
use super::reply::{done, number, text};
use super::{Context, output};
use crate::admin::client::PATIENT;
use crate::admin::pools::shown_time;
use crate::config::keys::check_name;
use crate::config::units::human_bytes;
use crate::error::{Error, Kind, Result};
use crate::pool::Prefetch;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often `--wait` looks.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the pools with their images and how many members have them
    #[command(visible_alias = "list")]
    Ls,
    /// Show one pool and its members
    Show(Named),
    /// Give the members another image, each when its guest has ended
    Refresh(Refresh),
    /// Give the members the image before again, or give up what is staged
    Rollback(Rollback),
    /// Let go of the image before, when all members have the new one
    Finish(Named),
}

#[derive(Debug, Args)]
pub struct Named {
    /// Name of the pool, as in `tenuto pool ls`
    name: String,
}

#[derive(Debug, Args)]
pub struct Rollback {
    /// Name of the pool, as in `tenuto pool ls`
    name: String,
    /// Wait until all members have it
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, Args)]
pub struct Refresh {
    /// Name of the pool, as in `tenuto pool ls`
    name: String,
    /// The new image: a whole file that is not written any more
    image: PathBuf,
    /// Only look at the image; a second `refresh` without this switches to it
    #[arg(long)]
    stage_only: bool,
    /// When to switch, as in "2026-12-24T22:00:00Z"; staged until then
    #[arg(long, value_name = "TIME", conflicts_with = "stage_only")]
    at: Option<String>,
    /// Members that move first
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    canary: Vec<String>,
    /// Steps after that, in percent of the members; the last one is 100
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    percent: Vec<u8>,
    /// How long a step lasts after its last member has moved; default: 10m where there are several
    /// steps
    #[arg(long, value_name = "TIME")]
    soak: Option<String>,
    /// More unhealthy members than this, and the pool goes back by itself
    #[arg(long, value_name = "NUMBER", default_value_t = 2)]
    max_failed: u32,
    /// What of the new image is read before members move to it: what they have read of the image
    /// before, all of it, or nothing
    #[arg(long, value_name = "WHAT", default_value = "profile",
          value_parser = PossibleValuesParser::new(Prefetch::WORDS))]
    prefetch: String,
    /// Program that is called with the name of a member: 0 = it is healthy
    #[arg(long, value_name = "PROGRAM")]
    health: Option<PathBuf>,
    /// Of qcow2 members: exchange their overlays for empty ones
    #[arg(long)]
    discard_changes: bool,
    /// Wait until all members have the new image; fails if the pool goes back
    #[arg(long)]
    wait: bool,
}

pub fn run(context: &Context, command: &Command) -> Result<()> {
    match command {
        Command::Ls => {
            let document = context.client()?.get("/v1/pools")?;
            context.output().document(&document, || list(&document))
        }
        Command::Show(named) => {
            let document = context.client()?.get(&url(&named.name, "")?)?;
            context.output().document(&document, || show(&document))
        }
        Command::Refresh(refresh) => order_refresh(context, refresh),
        Command::Rollback(rollback) => {
            let (name, client) = (&rollback.name, context.client()?);
            let mut reply = client.post(&url(name, "/rollback")?, None, PATIENT)?;
            if rollback.wait {
                reply = wait(context, name)?;
            }
            done(context, &reply, &state_line(&reply))
        }
        Command::Finish(named) => {
            let path = url(&named.name, "/finish")?;
            let reply = context.client()?.post(&path, None, PATIENT)?;
            done(context, &reply, &state_line(&reply))
        }
    }
}

/// The URL of a pool. A name that is not one never gets into a URL.
fn url(name: &str, rest: &str) -> Result<String> {
    check_name(name).map_err(|_| {
        let message = format!("pool {name}: not known; see `tenuto pool ls`");
        Error::new(Kind::NotFound, message).about(name)
    })?;
    Ok(format!("/v1/pools/{name}{rest}"))
}

fn order_refresh(context: &Context, refresh: &Refresh) -> Result<()> {
    let mut order = Map::new();
    let image = std::path::absolute(&refresh.image);
    let image = image.unwrap_or_else(|_| refresh.image.clone());
    order.insert("image".into(), json!(image.display().to_string()));
    order.insert("canary".into(), json!(refresh.canary));
    if !refresh.percent.is_empty() {
        order.insert("percent".into(), json!(refresh.percent));
    }
    if let Some(soak) = &refresh.soak {
        latency("--soak", soak)?;
        order.insert("soak".into(), json!(soak));
    }
    order.insert("max_failed".into(), json!(refresh.max_failed));
    if let Some(health) = &refresh.health {
        let health = std::path::absolute(health).unwrap_or_else(|_| health.clone());
        order.insert("health".into(), json!(health.display().to_string()));
    }
    if let Some(at) = &refresh.at {
        order.insert("at_unix_ms".into(), json!(time(at)?));
    }
    order.insert("prefetch".into(), json!(refresh.prefetch));
    order.insert("stage_only".into(), json!(refresh.stage_only));
    order.insert("discard_changes".into(), json!(refresh.discard_changes));
    let name = &refresh.name;
    let path = url(name, "/refresh")?;
    let order = Value::Object(order);
    let mut reply = context.client()?.post(&path, Some(&order), PATIENT)?;
    if refresh.wait {
        reply = wait(context, name)?;
    }
    // Its record is a new one, so this is of this refresh.
    if let Some(why) = reply["went_back"].as_str() {
        let message = format!("pool {name}: went back to the image before: {why}");
        return Err(Error::failed(message).about(name));
    }
    done(context, &reply, &state_line(&reply))
}

fn time(text: &str) -> Result<u64> {
    let right = "write a time as in 2026-12-24T22:00:00Z";
    let time = humantime::parse_rfc3339_weak(text);
    let time = time.map_err(|_| Error::usage(format!("--at: {text:?} is no time; {right}")))?;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    match time < SystemTime::now() {
        true => Err(Error::usage(format!(
            "--at: {text} is over; {right}, to come"
        ))),
        false => Ok(since.as_millis() as u64),
    }
}

/// Until the pool is stable.
fn wait(context: &Context, name: &str) -> Result<Value> {
    let client = context.client()?;
    loop {
        let document = client.get(&url(name, "")?)?;
        if document["state"] == "stable" || !document["went_back"].is_null() {
            return Ok(document);
        }
        sleep(LOOK);
    }
}

fn state_line(document: &Value) -> String {
    let (name, image) = (text(&document["name"]), text(&document["image"]));
    let (moved, total) = (
        number(&document["members_moved"]),
        number(&document["members_total"]),
    );
    let in_cluster = document["hosts"]
        .as_array()
        .is_some_and(|it| !it.is_empty());
    match document["state"].as_str() {
        Some("staged") => {
            let staged = text(&document["staged"]);
            format!("pool {name}: {staged} is staged; members have {image}")
        }
        Some("rolling") if moved == total && in_cluster => {
            format!("pool {name}: all {total} members of this host have {image}; others follow")
        }
        Some("rolling") => format!(
            "pool {name}: {moved} of {total} members have {image}; each other one gets it when its \
             guest has ended"
        ),
        _ => format!("pool {name}: all {total} members have {image}"),
    }
}

fn pools(document: &Value) -> &[Value] {
    document["pools"].as_array().map_or(&[], Vec::as_slice)
}

fn list(document: &Value) -> String {
    let pools = pools(document);
    if pools.is_empty() {
        return "no pool is configured; write [[pool]] with name, image and members\n".into();
    }
    let rows = pools.iter().map(|pool| {
        let moved = number(&pool["members_moved"]);
        let total = number(&pool["members_total"]);
        vec![
            text(&pool["name"]),
            text(&pool["clone"]),
            text(&pool["state"]),
            number(&pool["generation"]).to_string(),
            format!("{moved}/{total}"),
            text(&pool["image"]),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let head = ["POOL", "CLONE", "STATE", "GEN", "MEMBERS", "IMAGE"];
    output::table(&head, &rows, &[3, 4])
}

fn show(document: &Value) -> String {
    let mut fields = vec![
        ("pool", text(&document["name"])),
        ("clone", text(&document["clone"])),
        ("state", state_text(document)),
        ("image", {
            let generation = number(&document["generation"]);
            format!("{}, generation {generation}", text(&document["image"]))
        }),
    ];
    let previous = &document["previous"];
    if !previous.is_null() {
        let generation = number(&previous["generation"]);
        let image = text(&previous["image"]);
        fields.push(("before", format!("{image}, generation {generation}")));
    }
    if let Some(staged) = document["staged"].as_str() {
        fields.push(("staged", staged.into()));
    }
    let ahead = &document["read_ahead"];
    if number(&ahead["total_bytes"]) > 0 {
        let bytes = |key: &str| human_bytes(number(&ahead[key]));
        let (read, total) = (bytes("read_bytes"), bytes("total_bytes"));
        fields.push(("read ahead", format!("{read} of {total}")));
    }
    if let Some(why) = document["went_back"].as_str() {
        fields.push(("went back", why.into()));
    }
    if let Some(why) = document["trouble"].as_str() {
        fields.push(("trouble", why.into()));
    }
    let mut all = output::fields(&fields);
    all.push_str(&hosts_table(document));
    let members = document["members"].as_array();
    let rows = members.map_or(&[][..], Vec::as_slice).iter().map(|member| {
        let guest = match member["in_use"] == true {
            true => "runs",
            false => "-",
        };
        vec![
            text(&member["name"]),
            number(&member["generation"]).to_string(),
            guest.into(),
            text(&member["image"]),
            member["trouble"].as_str().unwrap_or("").into(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if !rows.is_empty() {
        let head = ["MEMBER", "GEN", "GUEST", "IMAGE", "TROUBLE"];
        all.push('\n');
        all.push_str(&output::table(&head, &rows, &[1]));
    }
    all
}

/// In a cluster, how far each host is.
fn hosts_table(document: &Value) -> String {
    let hosts = document["hosts"].as_array();
    let rows = hosts.map_or(&[][..], Vec::as_slice).iter().map(|host| {
        let up = if host["up"] == true { "up" } else { "down" };
        let (moved, members) = (number(&host["moved"]), number(&host["members"]));
        vec![
            text(&host["name"]),
            up.into(),
            number(&host["generation"]).to_string(),
            format!("{moved}/{members}"),
            number(&host["in_use"]).to_string(),
            host["trouble"].as_str().unwrap_or("").into(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = ["HOST", "LINK", "GEN", "MOVED", "GUESTS", "TROUBLE"];
    format!("\n{}", output::table(&head, &rows, &[2, 3, 4]))
}

fn state_text(document: &Value) -> String {
    let (moved, total) = (
        number(&document["members_moved"]),
        number(&document["members_total"]),
    );
    let rollout = &document["rollout"];
    match document["state"].as_str() {
        Some("rolling") => {
            let step = match rollout["percent"].as_u64() {
                Some(percent) => format!("{percent} %"),
                None => "the canaries".into(),
            };
            let soak = match number(&rollout["soak_ms"]) {
                0 => String::new(),
                soak => format!(", soak of {}", shown_time(soak)),
            };
            format!("rolling: {step}, {moved} of {total} members have the image{soak}")
        }
        Some(state) => state.into(),
        None => "-".into(),
    }
}
