//! The web page, and what of the admin interface may be seen over TCP.
//!
//! Owns the files of the page, which are part of the binary, and the door before a TCP listener:
//! every method but GET is refused before anything is looked at, and so is every request for data
//! without the token. Always true: nothing that is served here changes anything; the files of the
//! page hold no data and need no token; the token is in no reply and in no log. Deliberately
//! absent: cookies, so that no other page can make a browser ask; TLS, which a proxy has.

use crate::config::token::Token;
use crate::error::{Error, Kind};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;

struct File {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const FILES: [File; 6] = [
    File {
        path: "/",
        kind: "text/html; charset=utf-8",
        text: include_str!("page/page.html"),
    },
    File {
        path: "/page.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("page/page.js"),
    },
    File {
        path: "/page.css",
        kind: "text/css; charset=utf-8",
        text: include_str!("page/page.css"),
    },
    File {
        path: "/icon.svg",
        kind: "image/svg+xml",
        text: include_str!("page/icon.svg"),
    },
    File {
        path: "/uplot.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("page/uplot.js"),
    },
    File {
        path: "/uplot.css",
        kind: "text/css; charset=utf-8",
        text: include_str!("page/uplot.css"),
    },
];

/// What a browser must hold itself to. Nothing is loaded from elsewhere, and nothing written into
/// the page is run.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// The page at `/`, beside the routes of the data it shows.
pub fn with_page<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    let pages = FILES.iter().fold(router, |router, file| {
        let page = || async { ([(header::CONTENT_TYPE, file.kind)], file.text) };
        router.route(file.path, get(page))
    });
    pages.layer(middleware::map_response(with_headers))
}

async fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// What stands before the routes of a TCP listener.
pub fn behind_token(router: Router, token: Token) -> Router {
    let door = middleware::from_fn_with_state(Arc::new(token), door);
    router
        .layer(door)
        .layer(middleware::map_response(with_headers))
}

async fn door(State(token): State<Arc<Token>>, request: Request, next: Next) -> Response {
    if *request.method() != Method::GET {
        let words = "only looking is possible here; orders go over the admin socket";
        return refuse(StatusCode::METHOD_NOT_ALLOWED, words);
    }
    let open = FILES.iter().any(|file| file.path == request.uri().path());
    if open || offered(&request).is_some_and(|offered| token.is(offered)) {
        return next.run(request).await;
    }
    let words = "the token is missing or wrong; send it as `Authorization: Bearer TOKEN`";
    let mut response = refuse(StatusCode::UNAUTHORIZED, words);
    let scheme = HeaderValue::from_static("Bearer");
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, scheme);
    response
}

fn offered(request: &Request) -> Option<&str> {
    let value = request.headers().get(header::AUTHORIZATION)?;
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

fn refuse(status: StatusCode, words: &str) -> Response {
    let error = Error::new(Kind::Refused, words);
    (status, axum::Json(error.to_json())).into_response()
}
