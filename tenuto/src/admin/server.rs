//! The admin socket: HTTP and JSON over `<run-dir>/tenuto.sock`.
//!
//! Owns one thread with a runtime of its own, so that an administrator never shares one with
//! the data path. Always true: the socket has mode 0660 from the moment clients can connect to
//! it, and goes away in an orderly stop. A stale one is replaced, a live one is left alone.
//! Deliberately absent: decisions, which are [`Admin`]'s.

use super::listener::Bounded;
use super::{Admin, Outcome, go_on, json, metrics, values_from_json};
use crate::config::check::group_id;
use crate::error::{Error, Kind, Result, cause};
use axum::Router;
use axum::extract::{Path as UrlPath, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Map, Value, json as object};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;

/// Orders that run at the same time; a waiting destage occupies one.
const ORDERS_MAX: usize = 64;

/// A running server. [`Server::stop`] ends it.
pub struct Server {
    path: PathBuf,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Listens when this returns.
    pub fn start(
        admin: Arc<Admin>,
        path: &Path,
        group: Option<&str>,
        metrics: Option<SocketAddr>,
    ) -> Result<Server> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(ORDERS_MAX)
            .build()
            .map_err(|error| Error::failed(format!("admin runtime: {}", cause(&error))))?;
        let _inside = runtime.enter();
        let listener = bind(path, group)?;
        let tcp = metrics.map(bind_tcp).transpose()?;
        drop(_inside);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("admin".into())
            .spawn(move || runtime.block_on(serve(admin, listener, tcp, stopped)))
            .map_err(|error| Error::failed(format!("admin thread: {}", cause(&error))))?;
        Ok(Server {
            path: path.to_path_buf(),
            stop,
            thread,
        })
    }

    /// Ends the thread and removes the socket. Orders under way are not waited for: their
    /// outcome is decided by the shard, and their askers learn that the daemon is gone.
    pub fn stop(self) {
        // An error means that the thread has ended by itself, which is what is wanted.
        let _ = self.stop.send(());
        let _ = self.thread.join();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A socket that somebody answers is not ours to replace.
pub fn refuse_live(path: &Path) -> Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(Error::failed(format!(
            "{}: another daemon answers here; stop it, or give this one another [host] run-dir",
            path.display()
        ))),
        Err(_) => Ok(()),
    }
}

fn bind(path: &Path, group: Option<&str>) -> Result<UnixListener> {
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
    listener: UnixListener,
    tcp: Option<TcpListener>,
    stopped: oneshot::Receiver<()>,
) {
    let only_metrics = Router::new()
        .route("/metrics", get(show_metrics))
        .with_state(admin.clone());
    let all = router(admin);
    let unix = async { axum::serve(Bounded::new(listener), all).await };
    let tcp = async {
        match tcp {
            Some(listener) => axum::serve(Bounded::new(listener), only_metrics).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = unix => {}
        _ = tcp => {}
        _ = stopped => {}
    }
}

fn router(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/v1/status", get(show_status))
        .route("/v1/reload", post(reload))
        .route("/v1/drain", post(drain).delete(undo_drain))
        .route("/v1/volumes", get(list_volumes).post(add_volume))
        .route(
            "/v1/volumes/{name}",
            get(show_volume).patch(set_volume).delete(remove_volume),
        )
        .route("/v1/volumes/{name}/map", get(volume_map).post(volume_map))
        .route("/v1/volumes/{name}/resize", post(resize_volume))
        .route("/v1/volumes/{name}/{verb}", post(volume_verb))
        .route("/metrics", get(show_metrics))
        .fallback(|| async { no_such_path() })
        .method_not_allowed_fallback(|| async { no_such_path() })
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
        let volumes: Vec<Value> = view
            .shown()
            .map(|volume| json::volume(&view, volume))
            .collect();
        Ok(object!({ "volumes": volumes }))
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
    run(move || {
        let document = parse_body(&body)?;
        let name = document
            .get("name")
            .and_then(Value::as_str)
            .ok_or_else(|| Error::usage("name: is missing; write {\"name\": …, \"origin\": …}"))?;
        let outcome = admin.add(name, &values_from_json(&document, &["name"])?)?;
        shown(&admin, name, outcome)
    })
    .await
}

async fn set_volume(
    State(admin): App,
    UrlPath(name): UrlPath<String>,
    Query(waiting): Query<Waiting>,
    body: String,
) -> Response {
    run(move || {
        let (outcome, started) = admin.set(&name, &values_from_json(&parse_body(&body)?, &[])?)?;
        match started {
            Some(started) if waiting.wait => started()?,
            Some(started) => go_on(started),
            None => {}
        }
        shown(&admin, &name, outcome)
    })
    .await
}

fn parse_body(body: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(body)
        .map_err(|error| Error::usage(format!("body is no JSON object: {error}")))
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
        let outcome = admin.remove(&name, removal.discard_dirty.as_deref())?;
        Ok(object!({ "name": name, "removed": true, "notes": outcome.notes }))
    })
    .await
}

async fn reload(State(admin): App) -> Response {
    run(move || Ok(object!({ "notes": admin.reload()?.notes }))).await
}

async fn drain(State(admin): App, Query(waiting): Query<Waiting>) -> Response {
    run(move || admin.drain(waiting.wait)).await
}

async fn undo_drain(State(admin): App) -> Response {
    run(move || admin.undo_drain()).await
}

#[derive(Deserialize)]
struct Waiting {
    #[serde(default)]
    wait: bool,
    discard_dirty: Option<String>,
}

async fn volume_verb(
    State(admin): App,
    UrlPath((name, verb)): UrlPath<(String, String)>,
    Query(waiting): Query<Waiting>,
) -> Response {
    match verb.as_str() {
        "destage" | "flush" if waiting.wait => {
            run(move || {
                let outcome = admin.destage(&name)?;
                shown(&admin, &name, outcome)
            })
            .await
        }
        "destage" | "flush" => start_destage(admin, name).await,
        "reset" => {
            run(move || {
                let outcome = admin.reset(&name)?;
                shown(&admin, &name, outcome)
            })
            .await
        }
        "accept-loss" => {
            run(move || {
                let outcome = admin.accept_loss(&name, waiting.discard_dirty.as_deref())?;
                shown(&admin, &name, outcome)
            })
            .await
        }
        "commit" => {
            run(move || {
                let outcome = admin.commit(&name)?;
                shown(&admin, &name, outcome)
            })
            .await
        }
        "snapshot" | "merge" | "rebase" | "quiesce" | "resume" | "takeover" => reply(
            Err::<Value, _>(Error::later(format!("volume {verb} is")).about(name)),
        ),
        _ => no_such_path(),
    }
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
        let outcome = admin.resize(&name, &size, shrink.unwrap_or(false))?;
        shown(&admin, &name, outcome)
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
        return reply(Err::<Value, _>(error));
    }
    let order = name.clone();
    tokio::task::spawn_blocking(move || {
        if let Err(error) = admin.destage(&order) {
            tracing::warn!("{error}");
        }
    });
    let document = object!({ "name": name, "started": true });
    (StatusCode::ACCEPTED, axum::Json(document)).into_response()
}

async fn show_metrics(State(admin): App) -> Response {
    match tokio::task::spawn_blocking(move || admin.view()).await {
        Ok(Ok(view)) => {
            let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
            (kind, metrics::text(&view)).into_response()
        }
        Ok(Err(error)) => reply(Err::<Value, _>(error)),
        Err(_) => reply(Err::<Value, _>(Error::failed("the daemon is stopping"))),
    }
}

/// Runs an order where it may block.
async fn run(order: impl FnOnce() -> Result<Value> + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(order).await {
        Ok(result) => reply(result),
        Err(_) => reply(Err::<Value, _>(Error::failed("the daemon is stopping"))),
    }
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
