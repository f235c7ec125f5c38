//! The admin socket: HTTP and JSON over `<run-dir>/tenuto.sock`.
//!
//! Owns one thread with a runtime of its own, so that an administrator never shares one with
//! the data path. Always true: the socket has mode 0660 from the moment clients can connect to
//! it, and goes away in an orderly stop. A stale one is replaced, a live one is left alone.
//! Deliberately absent: decisions, which are [`Admin`]'s.

use super::events::{self, Notice};
use super::listener::{Bounded, Kept};
use super::observer::Observer;
use super::pools::Refresh;
use super::tcp::Clocks;
use super::{Admin, Outcome, json, metrics, rebase, tcp, values_from_json, web};
use crate::config::Listen;
use crate::config::check::group_id;
use crate::config::token::Token;
use crate::error::{Error, Kind, Result, cause};
use crate::origin::clone::CloneOf;
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path as UrlPath, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use serde::Deserialize;
use serde_json::{Map, Value, json as object};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{oneshot, watch};

/// Orders that run at the same time; a waiting destage occupies one.
const ORDERS_MAX: usize = 64;
/// How long a process may take to die.
const DYING_LOOKS: u32 = 20;
const DYING_PAUSE: Duration = Duration::from_millis(50);

/// How long replies under way may take when the server ends.
const FINISH: Duration = Duration::from_millis(500);

/// A running server. [`Server::stop`] ends it.
pub struct Server {
    path: PathBuf,
    observer: Observer,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Listens when this returns.
    pub fn start(
        admin: Arc<Admin>,
        path: &Path,
        group: Option<&str>,
        listen: &Listen,
    ) -> Result<Server> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(ORDERS_MAX)
            .build()
            .map_err(|error| Error::failed(format!("admin runtime: {}", cause(&error))))?;
        let _inside = runtime.enter();
        let listener = Kept::new(bind(path, group)?, admin.clone(), path, group);
        let mut tcp = Vec::new();
        if let Some(address) = listen.metrics {
            tcp.push((bind_tcp(address)?, only_metrics(admin.clone())));
        }
        if let Some(address) = listen.web {
            let token = token(listen)?;
            let router = web::behind_token(readable(admin.clone()), token);
            tcp.push((bind_tcp(address)?, router));
        }
        drop(_inside);
        let observer = Observer::start(admin.clone())?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("admin".into())
            .spawn(move || {
                runtime.block_on(serve(admin, listener, tcp, stopped));
                // Dropped, it would wait for orders that wait for an origin.
                runtime.shutdown_background();
            })
            .map_err(|error| Error::failed(format!("admin thread: {}", cause(&error))))?;
        Ok(Server {
            path: path.to_path_buf(),
            observer,
            stop,
            thread,
        })
    }

    /// Ends the threads and removes the socket. Who waits for events is told of the stop. Orders
    /// under way are hardly waited for: their outcome is decided by the shard, and their askers
    /// learn that the daemon is gone.
    pub fn stop(self) {
        self.observer.stop();
        // An error means that the thread has ended by itself, which is what is wanted.
        let _ = self.stop.send(());
        let _ = self.thread.join();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A socket that somebody answers is not ours to replace. One who was killed a moment ago may
/// still seem to.
pub fn refuse_live(path: &Path) -> Result<()> {
    let dead = || std::os::unix::net::UnixStream::connect(path).is_err();
    let dies = (0..DYING_LOOKS).any(|_| {
        let dead = dead();
        if !dead {
            std::thread::sleep(DYING_PAUSE);
        }
        dead
    });
    match dies {
        false => Err(Error::failed(format!(
            "{}: another daemon answers here; stop it, or give this one another [host] run-dir",
            path.display()
        ))),
        true => Ok(()),
    }
}

pub(super) fn bind(path: &Path, group: Option<&str>) -> Result<UnixListener> {
    let fail = |error: &std::io::Error| {
        Error::failed(format!(
            "{}: {}; [host] run-dir must be a directory this daemon may write",
            path.display(),
            cause(error)
        ))
    };
    refuse_live(path)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(fail(&error)),
        _ => {}
    }
    // Bound under another name first: nobody finds the socket before its mode is right.
    let hidden = path.with_extension("new");
    let _ = std::fs::remove_file(&hidden);
    let listener = UnixListener::bind(&hidden).map_err(|error| fail(&error))?;
    let finish = || -> std::io::Result<()> {
        if let Some(id) = group.and_then(group_id) {
            std::os::unix::fs::chown(&hidden, None, Some(id))?;
        }
        std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o660))?;
        std::fs::rename(&hidden, path)
    };
    finish().map_err(|error| fail(&error))?;
    Ok(listener)
}

/// The token of the web page; without one it is not opened to a network.
fn token(listen: &Listen) -> Result<Token> {
    let path = listen.web_token_file.as_deref();
    let path = path.ok_or_else(|| Error::usage("web: has no token; name its web-token-file"))?;
    Token::read(path).map_err(|wrong| {
        let words = format!("web-token-file: {}; {}", wrong.what, wrong.right);
        Error::usage(words)
    })
}

fn bind_tcp(address: SocketAddr) -> Result<TcpListener> {
    let listen = || {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    listen().map_err(|error| Error::failed(format!("listen {address}: {}", cause(&error))))
}

async fn serve(
    admin: Arc<Admin>,
    listener: Kept,
    tcp: Vec<(TcpListener, Router)>,
    stopped: oneshot::Receiver<()>,
) {
    let (end, ended) = watch::channel(());
    let all = web::with_page(router()).with_state(admin.clone());
    let unix = axum::serve(Bounded::new(listener), all)
        .with_graceful_shutdown(until_closed(ended.clone()));
    let mut servers = vec![tokio::spawn(unix.into_future())];
    for (listener, router) in tcp {
        let server = tcp::serve(listener, router, Clocks::USUAL, ended.clone());
        servers.push(tokio::spawn(async {
            server.await;
            Ok(())
        }));
    }
    // An error means that whoever would say it is gone, which says the same.
    let _ = stopped.await;
    admin.recordings.end_all();
    drop(end);
    let finish = async {
        for server in servers {
            let _ = server.await;
        }
    };
    let _ = tokio::time::timeout(FINISH, finish).await;
}

async fn until_closed(mut end: watch::Receiver<()>) {
    while end.changed().await.is_ok() {}
}

/// A path with its methods, as the document of the interface has them.
type Route = (&'static str, &'static [&'static str], Handlers);
type Handlers = MethodRouter<Arc<Admin>>;

/// All there is, but for the page.
fn routes() -> Vec<Route> {
    let volume = get(show_volume).patch(set_volume).delete(remove_volume);
    vec![
        ("/v1/status", &["get"], get(show_status)),
        ("/v1/reload", &["post"], post(reload)),
        (
            "/v1/drain",
            &["post", "delete"],
            post(drain).delete(undo_drain),
        ),
        ("/v1/cache/scrub", &["post"], post(scrub)),
        ("/v1/peers", &["get"], get(list_peers)),
        ("/v1/peers/{name}", &["delete"], delete(forget_host)),
        ("/v1/cluster/token", &["post"], post(cluster_token)),
        ("/v1/cluster/check", &["post"], post(cluster_check)),
        ("/v1/cluster/leave", &["post"], post(cluster_leave)),
        (
            "/v1/volumes",
            &["get", "post"],
            get(list_volumes).post(add_volume),
        ),
        ("/v1/volumes/{name}", &["get", "patch", "delete"], volume),
        (
            "/v1/volumes/{name}/map",
            &["get", "post"],
            get(volume_map).post(volume_map),
        ),
        ("/v1/volumes/{name}/rebase", &["post"], post(rebase_volume)),
        ("/v1/volumes/{name}/merge", &["post"], post(merge_volume)),
        ("/v1/volumes/{name}/resize", &["post"], post(resize_volume)),
        ("/v1/volumes/{name}/move", &["post"], post(move_volume)),
        (
            "/v1/volumes/{name}/snapshot",
            &["post"],
            post(snapshot_volume),
        ),
        (
            "/v1/volumes/{name}/checkpoints",
            &["get", "post"],
            get(list_checkpoints).post(add_checkpoint),
        ),
        (
            "/v1/volumes/{name}/checkpoints/{checkpoint}",
            &["get", "delete"],
            get(checkpoint_map).delete(delete_checkpoint),
        ),
        ("/v1/volumes/{name}/{verb}", &["post"], post(volume_verb)),
        ("/v1/pools", &["get"], get(list_pools)),
        ("/v1/pools/{name}", &["get"], get(show_pool)),
        ("/v1/pools/{name}/{verb}", &["post"], post(pool_verb)),
        ("/v1/advice", &["get"], get(show_advice)),
        ("/v1/history", &["get"], get(history)),
        ("/v1/events", &["get"], get(follow_events)),
        ("/v1/trace", &["get"], get(record)),
        ("/v1/trace/{number}", &["delete"], delete(end_recording)),
        ("/metrics", &["get"], get(show_metrics)),
        ("/openapi.json", &["get"], get(show_openapi)),
    ]
}

/// For the admin socket.
fn router() -> Router<Arc<Admin>> {
    let routes = routes().into_iter();
    routes
        .fold(Router::new(), |router, (path, _, handlers)| {
            router.route(path, handlers)
        })
        .fallback(|| async { no_such_path() })
        .method_not_allowed_fallback(|| async { no_such_path() })
}

/// What may be seen from elsewhere.
fn readable(admin: Arc<Admin>) -> Router {
    let router = Router::new()
        .route("/v1/status", get(show_status))
        .route("/v1/volumes", get(list_volumes))
        .route("/v1/volumes/{name}", get(show_volume))
        .route("/v1/peers", get(list_peers))
        .route("/v1/pools", get(list_pools))
        .route("/v1/pools/{name}", get(show_pool))
        .route("/v1/advice", get(show_advice))
        .route("/v1/history", get(history))
        .route("/v1/events", get(follow_events))
        .route("/metrics", get(show_metrics))
        .route("/openapi.json", get(show_openapi))
        .fallback(|| async { no_such_path() });
    web::with_page(router).with_state(admin)
}

fn only_metrics(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/metrics", get(show_metrics))
        .with_state(admin)
}

type App = State<Arc<Admin>>;

fn no_such_path() -> Response {
    reply(Err::<Value, _>(Error::new(
        Kind::NotFound,
        "no such path or method; see /v1/status",
    )))
}

async fn show_status(State(admin): App) -> Response {
    run(move || {
        let view = admin.view()?;
        let mut document = json::status(&view);
        document["troubles"] = object!(json::troubles(&view));
        Ok(document)
    })
    .await
}

async fn list_volumes(State(admin): App) -> Response {
    run(move || {
        let view = admin.view()?;
        Ok(object!({ "volumes": json::volumes(&view) }))
    })
    .await
}

async fn show_volume(State(admin): App, UrlPath(name): UrlPath<String>) -> Response {
    run(move || shown(&admin, &name, Outcome::default())).await
}

/// A volume as it is after an order, with what there is to say about the order.
fn shown(admin: &Admin, name: &str, outcome: Outcome) -> Result<Value> {
    let view = admin.view()?;
    let snapshot = view.volume(name).ok_or_else(|| Error::no_volume(name))?;
    let mut document = json::volume(&view, snapshot);
    if !outcome.notes.is_empty() {
        document["notes"] = object!(outcome.notes);
    }
    Ok(document)
}

async fn add_volume(State(admin): App, body: String) -> Response {
    let order = move || {
        let document = parse_body(&body)?;
        let name = document
            .get("name")
            .and_then(Value::as_str)
            .ok_or_else(|| Error::usage("name: is missing; write {\"name\": …, \"origin\": …}"))?;
        let clone = clone_from_json(&document)?;
        let values = values_from_json(&document, &["name", "clone_of", "plain"])?;
        told(&admin, "add", Some(name), || {
            let outcome = admin.add_new(name, &values, clone.as_ref())?;
            Ok((format!("/v1/volumes/{name}"), shown(&admin, name, outcome)?))
        })
    };
    match blocking(order).await {
        Ok((place, document)) => {
            let place = [(header::LOCATION, place)];
            (StatusCode::CREATED, place, axum::Json(document)).into_response()
        }
        Err(error) => reply(Err(error)),
    }
}

/// What a new volume is a clone of.
fn clone_from_json(document: &Map<String, Value>) -> Result<Option<CloneOf>> {
    let plain = match document.get("plain") {
        None => false,
        Some(Value::Bool(plain)) => *plain,
        Some(_) => return Err(Error::usage("plain: is true or false")),
    };
    match document.get("clone_of") {
        None if plain => Err(Error::usage("plain: goes with clone_of")),
        None => Ok(None),
        Some(Value::String(image)) if !image.is_empty() => Ok(Some(CloneOf {
            image: image.into(),
            plain,
        })),
        Some(_) => Err(Error::usage(
            "clone_of: is no path; write that of the image to stand on",
        )),
    }
}

/// Carries out an order and tells of it, however it ends.
fn told<T>(
    admin: &Admin,
    what: &str,
    volume: Option<&str>,
    order: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let result = order();
    admin.events.tell(Notice::order(what, volume, &result));
    result
}

async fn set_volume(
    State(admin): App,
    UrlPath(name): UrlPath<String>,
    Query(waiting): Query<Waiting>,
    body: String,
) -> Response {
    run(move || {
        let values = values_from_json(&parse_body(&body)?, &[])?;
        let keys: Vec<&str> = values.iter().map(|(key, _)| key.as_str()).collect();
        let what = format!("set {}", keys.join(", "));
        told(&admin, &what, Some(&name), || {
            let (outcome, started) = admin.set(&name, &values)?;
            match started {
                Some(started) if waiting.wait => started()?,
                Some(started) => admin.go_on(&what, Some(&name), started),
                None => {}
            }
            shown(&admin, &name, outcome)
        })
    })
    .await
}

fn parse_body(body: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(body)
        .map_err(|error| Error::usage(format!("body is no JSON object: {error}")))
}

/// Of orders that need none.
fn optional_body(body: &str) -> Result<Map<String, Value>> {
    match body.trim() {
        "" => Ok(Map::new()),
        body => parse_body(body),
    }
}

/// The name that a snapshot or a checkpoint is to have.
fn moment_of(document: &Map<String, Value>) -> Result<Option<&str>> {
    match document.get("name") {
        None => Ok(None),
        Some(Value::String(name)) => Ok(Some(name)),
        Some(_) => Err(Error::usage(
            "name: is no text; write {\"name\": \"monday\"}",
        )),
    }
}

#[derive(Deserialize)]
struct Removal {
    discard_dirty: Option<String>,
}

async fn remove_volume(
    State(admin): App,
    UrlPath(name): UrlPath<String>,
    Query(removal): Query<Removal>,
) -> Response {
    run(move || {
        let outcome = told(&admin, "rm", Some(&name), || {
            admin.remove(&name, removal.discard_dirty.as_deref())
        })?;
        Ok(object!({ "name": name, "removed": true, "notes": outcome.notes }))
    })
    .await
}

async fn list_pools(State(admin): App) -> Response {
    run(move || admin.pools()).await
}

async fn show_pool(State(admin): App, UrlPath(name): UrlPath<String>) -> Response {
    run(move || admin.pool(&name)).await
}

async fn show_advice(State(admin): App) -> Response {
    run(move || admin.advice()).await
}

async fn pool_verb(
    State(admin): App,
    UrlPath((name, verb)): UrlPath<(String, String)>,
    body: String,
) -> Response {
    run(move || {
        told(&admin, &format!("pool {verb} {name}"), None, || {
            match verb.as_str() {
                "refresh" => {
                    let refresh = Refresh::from_json(&parse_body(&body)?)?;
                    admin.pool_refresh(&name, refresh)?;
                }
                "rollback" => drop(admin.pool_rollback(&name)?),
                "finish" => drop(admin.pool_finish(&name)?),
                _ => {
                    let right = "known are refresh, rollback and finish";
                    let message = format!("pool {name}: {verb} is no verb; {right}");
                    return Err(Error::new(Kind::NotFound, message));
                }
            }
            admin.pool(&name)
        })
    })
    .await
}

async fn list_peers(State(admin): App) -> Response {
    run(move || Ok(admin.peers())).await
}

async fn cluster_token(State(admin): App) -> Response {
    run(move || told(&admin, "cluster token", None, || admin.token())).await
}

async fn cluster_check(State(admin): App) -> Response {
    run(move || admin.check_cluster()).await
}

async fn cluster_leave(State(admin): App) -> Response {
    run(move || told(&admin, "cluster leave", None, || admin.leave())).await
}

async fn forget_host(State(admin): App, UrlPath(name): UrlPath<String>) -> Response {
    run(move || {
        let what = format!("cluster forget {name}");
        told(&admin, &what, None, || admin.forget_host(&name))
    })
    .await
}

async fn reload(State(admin): App) -> Response {
    run(move || {
        let outcome = told(&admin, "reload", None, || admin.reload())?;
        Ok(object!({ "notes": outcome.notes }))
    })
    .await
}

async fn drain(State(admin): App, Query(waiting): Query<Waiting>) -> Response {
    run(move || told(&admin, "drain", None, || admin.drain(waiting.wait))).await
}

async fn scrub(State(admin): App, Query(waiting): Query<Waiting>) -> Response {
    run(move || told(&admin, "cache scrub", None, || admin.scrub(waiting.wait))).await
}

async fn undo_drain(State(admin): App) -> Response {
    run(move || told(&admin, "drain --undo", None, || admin.undo_drain())).await
}

#[derive(Deserialize)]
struct Waiting {
    #[serde(default)]
    wait: bool,
    discard_dirty: Option<String>,
    overwrite: Option<String>,
    #[serde(default)]
    fenced: bool,
    checkpoint: Option<String>,
    #[serde(default)]
    through: bool,
    #[serde(default)]
    force: bool,
}

async fn volume_verb(
    State(admin): App,
    UrlPath((name, verb)): UrlPath<(String, String)>,
    Query(waiting): Query<Waiting>,
) -> Response {
    type Order = fn(&Admin, &str, Option<&str>) -> Result<Outcome>;
    let order: Order = match verb.as_str() {
        "destage" | "flush" if waiting.wait => |admin, name, _| admin.destage(name),
        "destage" | "flush" => return start_destage(admin, name).await,
        "reset" => |admin, name, _| admin.reset(name),
        "accept-loss" => Admin::accept_loss,
        "takeover" if waiting.overwrite.is_some() => Admin::overwrite,
        "takeover" if waiting.fenced => Admin::take_over_fenced,
        "takeover" => {
            let what = "volume takeover without overwrite or fenced is";
            let error = Error::later(what).about(name);
            return reply(Err::<Value, _>(error));
        }
        "commit" => |admin, name, _| admin.commit(name),
        "quiesce" if waiting.through && waiting.checkpoint.is_some() => {
            let error = Error::usage("through and checkpoint: one of them; a checkpoint is a cut");
            return reply(Err::<Value, _>(error.about(name)));
        }
        "quiesce" if waiting.through => |admin, name, _| admin.quiesce_through(name),
        "quiesce" => Admin::quiesce,
        "resume" => |admin, name, force| admin.resume(name, force.is_some()),
        _ => return no_such_path(),
    };
    run(move || {
        told(&admin, &verb, Some(&name), || {
            // Named again, it is confirmed.
            let overwrite = waiting.overwrite.filter(|again| !again.is_empty());
            let argument = match verb.as_str() {
                "quiesce" => waiting.checkpoint,
                "resume" => waiting.force.then(String::new),
                _ => overwrite.or(waiting.discard_dirty),
            };
            let outcome = order(&admin, &name, argument.as_deref())?;
            shown(&admin, &name, outcome)
        })
    })
    .await
}

async fn resize_volume(
    State(admin): App,
    UrlPath(name): UrlPath<String>,
    body: String,
) -> Response {
    run(move || {
        let document = parse_body(&body)?;
        let size = match document.get("size") {
            Some(Value::String(size)) => size.clone(),
            Some(Value::Number(bytes)) => bytes.to_string(),
            _ => {
                return Err(Error::usage(
                    "size: is missing; write {\"size\": \"40GiB\"}",
                ));
            }
        };
        let shrink = document.get("shrink").and_then(Value::as_bool);
        told(&admin, "resize", Some(&name), || {
            let outcome = admin.resize(&name, &size, shrink.unwrap_or(false))?;
            shown(&admin, &name, outcome)
        })
    })
    .await
}

async fn move_volume(State(admin): App, UrlPath(name): UrlPath<String>, body: String) -> Response {
    run(move || {
        let document = parse_body(&body)?;
        let to = document.get("to").and_then(Value::as_str);
        let to = to.ok_or_else(|| Error::usage("to: is missing; write {\"to\": \"host-b\"}"))?;
        told(&admin, "move", Some(&name), || {
            let outcome = admin.volume_move(&name, to)?;
            shown(&admin, &name, outcome)
        })
    })
    .await
}

async fn rebase_volume(
    State(admin): App,
    UrlPath(name): UrlPath<String>,
    body: String,
) -> Response {
    run(move || {
        let order = rebase::Order::parse(&parse_body(&body)?).map_err(Error::usage)?;
        told(&admin, "rebase", Some(&name), || {
            let outcome = admin.rebase(&name, &order)?;
            shown(&admin, &name, outcome)
        })
    })
    .await
}

async fn merge_volume(State(admin): App, UrlPath(name): UrlPath<String>, body: String) -> Response {
    run(move || {
        let document = optional_body(&body)?;
        if let Some(key) = document.keys().find(|key| *key != "remove") {
            let message = format!("{key}: unknown key; there is remove");
            return Err(Error::usage(message));
        }
        let remove = match document.get("remove") {
            None => false,
            Some(Value::Bool(remove)) => *remove,
            Some(_) => return Err(Error::usage("remove: is neither true nor false")),
        };
        told(&admin, "merge", Some(&name), || {
            let outcome = admin.merge(&name, remove)?;
            shown(&admin, &name, outcome)
        })
    })
    .await
}

async fn snapshot_volume(
    State(admin): App,
    UrlPath(name): UrlPath<String>,
    body: String,
) -> Response {
    run(move || {
        let document = optional_body(&body)?;
        let snapshot = moment_of(&document)?;
        let plain = match document.get("plain") {
            None => false,
            Some(Value::Bool(plain)) => *plain,
            Some(_) => return Err(Error::usage("plain: is neither true nor false")),
        };
        let unknown = document
            .keys()
            .find(|key| !["name", "plain"].contains(&key.as_str()));
        if let Some(key) = unknown {
            return Err(Error::usage(format!(
                "{key}: unknown key; there are name and plain"
            )));
        }
        told(&admin, "snapshot", Some(&name), || {
            let outcome = admin.snapshot(&name, snapshot, plain)?;
            shown(&admin, &name, outcome)
        })
    })
    .await
}

async fn list_checkpoints(State(admin): App, UrlPath(name): UrlPath<String>) -> Response {
    run(move || admin.checkpoints(&name)).await
}

async fn add_checkpoint(
    State(admin): App,
    UrlPath(name): UrlPath<String>,
    body: String,
) -> Response {
    run(move || {
        let document = optional_body(&body)?;
        if let Some(key) = document.keys().find(|key| *key != "name") {
            return Err(Error::usage(format!("{key}: unknown key; there is name")));
        }
        let checkpoint = moment_of(&document)?;
        told(&admin, "checkpoint", Some(&name), || {
            admin.checkpoint(&name, checkpoint)
        })
    })
    .await
}

async fn checkpoint_map(
    State(admin): App,
    UrlPath((name, checkpoint)): UrlPath<(String, String)>,
) -> Response {
    run(move || admin.changes(&name, &checkpoint)).await
}

async fn delete_checkpoint(
    State(admin): App,
    UrlPath((name, checkpoint)): UrlPath<(String, String)>,
) -> Response {
    run(move || {
        told(&admin, "checkpoint --delete", Some(&name), || {
            admin.delete_checkpoint(&name, &checkpoint)
        })
    })
    .await
}

async fn volume_map(State(admin): App, UrlPath(name): UrlPath<String>) -> Response {
    run(move || admin.map(&name)).await
}

/// Starts a destage and does not wait for it; that it fails is then seen in the volume's state.
async fn start_destage(admin: Arc<Admin>, name: String) -> Response {
    let checked = admin.clone();
    let known = name.clone();
    let allowed = tokio::task::spawn_blocking(move || checked.check_destage(&known)).await;
    if let Ok(Err(error)) = allowed {
        let refused = Err::<Value, _>(error);
        admin
            .events
            .tell(Notice::order("destage", Some(&name), &refused));
        return reply(refused);
    }
    let order = name.clone();
    tokio::task::spawn_blocking(move || {
        let done = told(&admin, "destage", Some(&order), || admin.destage(&order));
        if let Err(error) = done {
            tracing::warn!("{error}");
        }
    });
    let document = object!({ "name": name, "started": true });
    (StatusCode::ACCEPTED, axum::Json(document)).into_response()
}

#[derive(Deserialize)]
struct Span {
    seconds: Option<u64>,
    volume: Option<String>,
}

/// What is told where nobody says how much.
const HISTORY_SECONDS: u64 = 600;

async fn history(State(admin): App, asked: Asked<Span>) -> Response {
    let span = match parameters(asked) {
        Ok(span) => span,
        Err(error) => return reply(Err::<Value, _>(error)),
    };
    run(move || {
        let seconds = span.seconds.unwrap_or(HISTORY_SECONDS);
        admin.history.document(span.volume.as_deref(), seconds)
    })
    .await
}

#[derive(Deserialize)]
struct Following {
    #[serde(default)]
    after: u64,
    #[serde(default)]
    wait: u64,
}

async fn follow_events(State(admin): App, asked: Asked<Following>) -> Response {
    let page = async {
        let following = parameters(asked)?;
        let wait = Duration::from_secs(following.wait);
        if wait > events::WAIT_MAX {
            let longest = events::WAIT_MAX.as_secs();
            let words = format!("wait: {} is too long; write 0 to {longest}", following.wait);
            return Err(Error::usage(words));
        }
        admin.events.wait_after(following.after, wait).await
    };
    reply(page.await.map(|page| page.document()))
}

/// Streams what guests ask of volumes, in the native format of traces.
async fn record(State(admin): App, asked: Asked<Vec<(String, String)>>) -> Response {
    let names = parameters(asked).and_then(|asked| {
        let name = |(key, value): (String, String)| match key.as_str() {
            "volume" => Ok(value),
            _ => Err(Error::usage(format!(
                "{key}: is unknown; write volume=NAME"
            ))),
        };
        asked.into_iter().map(name).collect()
    });
    let begin = move || admin.record(names?);
    match tokio::task::spawn_blocking(begin).await {
        Ok(Ok((number, chunks))) => {
            let kind = (header::CONTENT_TYPE, "application/octet-stream".to_owned());
            let place = (header::LOCATION, format!("/v1/trace/{number}"));
            ([kind, place], Body::new(chunks)).into_response()
        }
        Ok(Err(error)) => reply(Err::<Value, _>(error)),
        Err(_) => reply(Err::<Value, _>(Error::failed("the daemon is stopping"))),
    }
}

async fn end_recording(State(admin): App, UrlPath(number): UrlPath<String>) -> Response {
    let ended = match number.parse() {
        Ok(number) => admin.recordings.end(number),
        Err(_) => return no_such_path(),
    };
    reply(ended.map(|()| object!({ "recording": number, "ending": true })))
}

type Asked<T> = std::result::Result<Query<T>, QueryRejection>;

fn parameters<T>(asked: Asked<T>) -> Result<T> {
    match asked {
        Ok(Query(parameters)) => Ok(parameters),
        Err(rejected) => Err(Error::usage(rejected.body_text())),
    }
}

/// The interface as a machine reads it (OpenAPI 3.1). Tests hold it against the routes and against
/// what a daemon replies.
pub const OPENAPI: &str = include_str!("openapi.json");

async fn show_openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

async fn show_metrics(State(admin): App) -> Response {
    let text = move || Ok(metrics::text(&admin.view()?, &admin.history));
    match tokio::task::spawn_blocking(text).await {
        Ok(Ok(text)) => {
            let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
            (kind, text).into_response()
        }
        Ok(Err(error)) => reply(Err::<Value, _>(error)),
        Err(_) => reply(Err::<Value, _>(Error::failed("the daemon is stopping"))),
    }
}

/// Runs an order where it may block, and replies.
async fn run(order: impl FnOnce() -> Result<Value> + Send + 'static) -> Response {
    reply(blocking(order).await)
}

/// Runs an order where it may block.
async fn blocking<T: Send + 'static>(
    order: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(order).await;
    done.unwrap_or_else(|_| Err(Error::failed("the daemon is stopping")))
}

fn reply(result: Result<Value>) -> Response {
    match result {
        Ok(document) => axum::Json(document).into_response(),
        Err(error) => {
            let status = StatusCode::from_u16(error.kind.http_status())
                .expect("every kind has a valid status");
            (status, axum::Json(error.to_json())).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_route_is_documented_and_every_documented_route_is_there() {
        let document: Value = serde_json::from_str(OPENAPI).expect("JSON");
        let mut documented = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().expect("paths") {
            for method in methods.as_object().expect("methods").keys() {
                documented.insert(format!("{method} {path}"));
            }
        }
        let mut there = BTreeSet::new();
        for (path, methods, _) in routes() {
            there.extend(methods.iter().map(|method| format!("{method} {path}")));
        }
        assert_eq!(documented, there);
    }

    #[test]
    fn words_of_the_document_are_those_of_the_code() {
        let document: Value = serde_json::from_str(OPENAPI).expect("JSON");
        let words = |schema: &str, key: &str| -> Vec<&str> {
            let place = format!("/components/schemas/{schema}/properties/{key}/enum");
            let words = document.pointer(&place).and_then(Value::as_array);
            let words = words.unwrap_or_else(|| panic!("{place}")).iter();
            words.filter_map(Value::as_str).collect()
        };
        let kinds = events::Kind::ALL.map(events::Kind::name);
        assert_eq!(words("Event", "kind"), kinds);
        let severities = events::Severity::ALL.map(events::Severity::name);
        assert_eq!(words("Event", "severity"), severities);
        let errors = Kind::ALL.map(Kind::name);
        let mut known = words("Error", "error/properties/kind");
        known.sort_unstable();
        let mut errors = errors.to_vec();
        errors.sort_unstable();
        assert_eq!(known, errors);
    }
}
