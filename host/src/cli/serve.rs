//! `tenuto serve`: one daemon in the foreground.
//!
//! Always true: everything that can be found wrong without touching anything is found before
//! anything is started; "ready" is said when guests and administrators can connect. SIGTERM and
//! SIGINT end in order and keep dirty data; SIGHUP applies the changed file.

use super::live::{Live, start_error};
use super::log::{self, Style};
use super::supervisor::Supervisor;
use super::{Context, arguments, cache, clustered};
use crate::admin::Admin;
use crate::admin::events::{Kind as EventKind, Notice, Severity};
use crate::admin::held::Retries;
use crate::admin::server::{self, Server};
use crate::cluster::{LinkEvent, Links, Settings as LinkSettings};
use crate::config::cluster::Cluster;
use crate::config::{self, Config, LogFormat, Volume, check, state};
use crate::daemon::{Daemon, SanSettings, Why};
use crate::error::{Error, Kind, Result, cause};
use crate::shard;
use crate::sys;
use clap::Args;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

#[derive(Debug, Args)]
pub struct Serve {
    /// Do not start if any volume cannot be served: code 4 for one that is held because data could
    /// be lost, 2 or 1 for one whose image cannot be opened
    #[arg(long)]
    strict: bool,
    /// How the lines of the log look; default: as the configuration says
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<log::Format>,
    /// For benchmarks: each request to an image takes so much longer
    #[arg(long, value_name = "TIME", hide = true)]
    origin_latency: Option<String>,
}

pub fn run(context: &Context, command: &Serve) -> Result<()> {
    let config = load(context)?.with_records()?;
    let unfit = check::check_apart(&config)?;
    if let Some(error) = unfit.into_iter().next().filter(|_| command.strict) {
        return Err(error.into());
    }
    let style = start_log(context, command, &config);
    match serve(config, command, style) {
        // The last line as well is one of the log.
        Err(mut error) if style.is_for_programs() && !context.common.json => {
            tracing::error!("{error}");
            error.message.clear();
            Err(error)
        }
        result => result,
    }
}

/// The configuration. Who has none is told how to begin.
fn load(context: &Context) -> Result<Config> {
    let path = config::locate(context.common.config.as_deref());
    if path != Path::new(config::DEFAULT_PATH) || path.exists() {
        return context.load();
    }
    let file = path.display().to_string();
    let message = format!(
        "{file}: there is no configuration; try one image with `tenuto try IMAGE`, or write that \
         file or another for -c FILE: [cache] with path = \"FILE\" and size = \"4GiB\", [[volume]] \
         with name = \"disk\" and origin = \"IMAGE\""
    );
    Err(Error::new(Kind::Config, message).about(file))
}

/// A group to which this user cannot give sockets is an error where it was asked for.
fn check_group(config: &Config) -> Result<()> {
    let group = &config.host.group;
    if check::group_id(group).is_none_or(sys::may_give_to_group) {
        return Ok(());
    }
    let right = "add the user to the group, or run the daemon as root";
    if config.asks_for_group() {
        let what = "this user is not in it and cannot give sockets to it";
        let message = format!("group {group}: {what}; {right}, or leave [host] group out");
        return Err(Error::new(Kind::Config, message).about(group));
    }
    tracing::warn!("group {group}: this user is not in it, so it cannot use the sockets; {right}");
    Ok(())
}

fn serve(config: Config, command: &Serve, style: Style) -> Result<()> {
    check_group(&config)?;
    make_directory(&config.host.run_dir)?;
    let socket = config.admin_socket();
    // Before the daemon replaces sockets that only look stale.
    server::refuse_live(&socket)?;
    let _state = state::lock(&config)?;
    let mut volumes = config.volumes.clone();
    volumes.extend(added_volumes(&config)?);
    // A host that gives no ring gets no cache file either.
    shard::probe().map_err(|error| Error::failed(error.to_string()))?;
    cache::create_missing(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("runtime: {}", cause(&error))))?;
    // From here on a signal waits for its turn instead of ending the process half started.
    let mut signals = runtime.block_on(async { Signals::new() })?;
    let supervisor = Supervisor::from_environment();
    supervisor.starting();
    let daemon = start_daemon(&config, &volumes, command)?;
    let group = config.socket_group();
    let listen = config.listen.clone();
    let live = Box::new(Live::new(daemon.clone()));
    let shard = daemon.handle().clone();
    let (host, cluster) = (config.host.clone(), config.cluster.clone());
    let admin = Arc::new(Admin::new(config, volumes, live));
    let server = match Server::start(admin.clone(), &socket, group.as_deref(), &listen) {
        Ok(server) => server,
        Err(error) => {
            // The first error is the one to tell; nothing was acknowledged yet.
            let _ = daemon.stop();
            return Err(error);
        }
    };
    let watched = supervisor.watch(shard, admin.clone());
    if let Err(error) = watched {
        // The manager would end the daemon for its silence.
        let _ = daemon.stop();
        return Err(Error::failed(format!(
            "the watchdog's thread: {}",
            cause(&error)
        )));
    }
    if let Err(error) = daemon.keep_looking() {
        let _ = daemon.stop();
        return Err(Error::failed(format!("a thread: {}", cause(&error))));
    }
    if admin.is_drained() {
        admin.drain_again();
    }
    let links = cluster.and_then(|cluster| start_cluster(&host, &cluster, &admin, &daemon));
    // Pools of a host in a cluster follow its vault.
    if let Err(error) = daemon.keep_refreshing() {
        let _ = daemon.stop();
        return Err(Error::failed(format!("a thread: {}", cause(&error))));
    }
    let retries = Retries::start(admin.clone());
    say_ready(&supervisor, &admin, style);
    runtime.block_on(signals.until_the_end(&supervisor, &admin));
    supervisor.stopping();
    drop(retries);
    tracing::info!("stopping; dirty data stays in the cache");
    server.stop();
    // While there are links, others hear of what is let go of.
    daemon.leave_cluster();
    links.iter().for_each(|it| it.stop());
    stop(&daemon)
}

fn stop(daemon: &Daemon) -> Result<()> {
    daemon.stop().map_err(|error| {
        let left = match daemon.is_cache_gone() {
            true => "what has not reached its origin is lost with the cache file",
            false => "what is not in the cache is in the stage",
        };
        Error::failed(format!("stop: {error}; {left}"))
    })?;
    tracing::info!("stopped");
    Ok(())
}

/// A daemon that serves its volumes; where it is to be strict, all of them.
fn start_daemon(config: &Config, volumes: &[Volume], command: &Serve) -> Result<Arc<Daemon>> {
    let strict = command.strict;
    let mut settings = config.settings(volumes);
    settings.strict = strict;
    if let Some(text) = &command.origin_latency {
        let san = SanSettings {
            latency: arguments::latency("--origin-latency", text)?,
            iops: None,
            bandwidth_bytes: None,
        };
        let volumes = settings.volumes.iter_mut();
        volumes.for_each(|volume| volume.san = Some(san));
    }
    let daemon = Arc::new(Daemon::start(settings).map_err(start_error)?);
    let held = daemon.held().into_iter();
    let held = held
        .filter(|held| held.hold.why != Why::Away)
        .find(|_| strict);
    let Some(held) = held else {
        return Ok(daemon);
    };
    let _ = daemon.stop();
    Err(Error::refused(held.hold.reason).about(held.settings.name))
}

/// Starts the links of this host, and lets its cluster decide about volumes; the links, if any.
fn start_cluster(
    host: &config::Host,
    cluster: &Cluster,
    admin: &Arc<Admin>,
    daemon: &Arc<Daemon>,
) -> Option<Arc<Links>> {
    let settings = LinkSettings {
        state_dir: host.state_dir.clone(),
        host_name: host.name.clone(),
        listen: cluster.listen.clone(),
        domain: cluster.domain.clone(),
        peer_timeout: cluster.peer_timeout,
        vault: cluster.vault.show(),
        boot: daemon.boot(),
        cache: daemon.cache_id(),
    };
    let links = start_links(settings, admin, daemon);
    let with = clustered::Joining {
        cluster,
        state_dir: &host.state_dir,
        host_name: &host.name,
    };
    if let Err(error) = clustered::join(&with, daemon, links.clone()) {
        tracing::error!("{error}; volumes of the cluster are not served");
    }
    links
}

/// Starts the links. Volumes are served without them: a host that is cut off has its own disks.
fn start_links(
    settings: LinkSettings,
    admin: &Arc<Admin>,
    daemon: &Arc<Daemon>,
) -> Option<Arc<Links>> {
    let told = Arc::new(OnceLock::<Weak<Links>>::new());
    let (events, known) = (admin.events.clone(), told.clone());
    let serves = Arc::downgrade(daemon);
    let on = move |event| {
        let links = known.get().and_then(Weak::upgrade);
        if let Some(notice) = link_notice(&event, links.as_deref()) {
            events.tell(notice);
        }
        if let Some(daemon) = serves.upgrade() {
            clustered::hear(&daemon, event);
        }
    };
    match Links::start(settings, Box::new(on)) {
        Ok(links) => {
            let links = Arc::new(links);
            let _ = told.set(Arc::downgrade(&links));
            admin.set_links(links.clone());
            Some(links)
        }
        Err(error) => {
            let words = format!("cluster: there are no links to other hosts: {error}");
            tracing::error!("{words}");
            let notice = Notice::host(Severity::Error, EventKind::Peer, words);
            admin.events.tell(notice);
            None
        }
    }
}

/// What an administrator is told of a link.
fn link_notice(event: &LinkEvent, links: Option<&Links>) -> Option<Notice> {
    let (host, severity, state) = match event {
        LinkEvent::Up { host, .. } => (*host, Severity::Info, "up"),
        LinkEvent::Down { host } => (*host, Severity::Warning, "down"),
        LinkEvent::Unit { .. } | LinkEvent::DataDown { .. } | LinkEvent::Data { .. } => {
            return None;
        }
    };
    let hosts = links.map_or_else(Vec::new, Links::hosts).into_iter();
    let names: BTreeMap<_, _> = hosts.map(|member| (member.id, member.name)).collect();
    let name = names
        .get(&host)
        .cloned()
        .unwrap_or_else(|| host.to_string());
    let words = format!("host {name}: its link is {state}");
    tracing::info!("{words}");
    Some(Notice::host(severity, EventKind::Peer, words))
}

/// How lines look: as asked on the command line, else as the file says.
fn start_log(context: &Context, command: &Serve, config: &Config) -> Style {
    let common = &context.common;
    let level = match (common.quiet, common.verbose) {
        (0, 0) => "info",
        (0, 1) => "debug",
        (0, _) => "trace",
        (1, _) => "warn",
        (_, _) => "error",
    };
    let filter = EnvFilter::try_from_env("TENUTO_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let configured = match config.host.log_format {
        LogFormat::Text => log::Format::Text,
        LogFormat::Json => log::Format::Json,
    };
    let style = Style {
        format: command.log_format.unwrap_or(configured),
        journal: log::is_journal(),
        colors: log::colors(common.color),
    };
    log::start(style, filter);
    style
}

/// Volumes that were added at run time. One that does not fit to the file must not keep the others
/// down: its dirty data stays in the cache, and `volume ls` shows it as an orphan.
fn added_volumes(config: &Config) -> Result<Vec<Volume>> {
    let added = state::load(config)?;
    let named = config.volumes.iter();
    let mut known: Vec<(&Volume, check::Identity)> = named
        .map(|volume| (volume, check::Identity::of(&volume.origin)))
        .collect();
    let named = known.len();
    for volume in &added {
        match check::check_volume_words(config, volume, &known) {
            Ok(identity) => known.push((volume, identity)),
            Err(error) => tracing::error!("volume {} is left out: {error}", volume.name),
        }
    }
    let added = known.into_iter().skip(named);
    Ok(added.map(|(volume, _)| volume.clone()).collect())
}

fn make_directory(path: &std::path::Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|error| {
        Error::failed(format!(
            "{}: {}; [host] run-dir must be a directory this daemon may make",
            path.display(),
            cause(&error)
        ))
    })
}

fn say_ready(supervisor: &Supervisor, admin: &Admin, style: Style) {
    supervisor.ready();
    supervisor.show(admin);
    match style.is_for_programs() {
        true => tracing::info!("ready"),
        false => eprintln!("ready"),
    }
    // Whoever does not read the line has other ways to know.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "ready").and_then(|()| out.flush());
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    reload: Signal,
}

impl Signals {
    fn new() -> Result<Signals> {
        let listen = |kind| {
            signal(kind).map_err(|error| Error::failed(format!("signals: {}", cause(&error))))
        };
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            reload: listen(SignalKind::hangup())?,
        })
    }

    /// Serves SIGHUP until one of the others comes.
    async fn until_the_end(&mut self, supervisor: &Supervisor, admin: &Arc<Admin>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.reload.recv() => {
                    let with = (supervisor.clone(), admin.clone());
                    // Attaching volumes blocks; signals that come meanwhile wait.
                    let _ = tokio::task::spawn_blocking(move || reload(&with.0, &with.1)).await;
                }
            }
        }
    }
}

fn reload(supervisor: &Supervisor, admin: &Admin) {
    supervisor.reloading();
    admin.look_around();
    let result = admin.reload();
    admin.events.tell(Notice::order("reload", None, &result));
    match result {
        Ok(outcome) if outcome.notes.is_empty() => tracing::info!("reload: nothing has changed"),
        Ok(outcome) => {
            for note in outcome.notes {
                tracing::info!("reload: {note}");
            }
        }
        Err(error) => tracing::error!("reload: {error}; nothing is changed"),
    }
    supervisor.ready();
    supervisor.show(admin);
}
