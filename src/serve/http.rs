//! HTTP: connections, limits and routes.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, EXPECT, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::engine::Engine;
use super::error::ApiError;
use super::options::Limits;

/// How often the accepting loop looks whether it should stop.
const POLL: Duration = Duration::from_millis(50);
/// How long requests under way may take at the end.
const LAST: Duration = Duration::from_secs(10);
/// Bytes of a body that is too large which are read and dropped, so that its sender gets to the answer.
const MOST_DROPPED: usize = Limits::MOST_BODY;
/// Bytes of bodies that are held at once, in kibibytes.
const HELD_KIB: usize = 256 << 10;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

/// Answers on this thread until `stop` is set and the requests under way have ended.
pub fn serve(
    listener: std::net::TcpListener,
    engine: Arc<Engine>,
    limits: Limits,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(accept(listener, engine, limits, stop))
}

/// What every connection shares.
struct Shared {
    engine: Arc<Engine>,
    limits: Limits,
    held: Semaphore,
}

async fn accept(
    listener: std::net::TcpListener,
    engine: Arc<Engine>,
    limits: Limits,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let graceful = GracefulShutdown::new();
    let connections = Arc::new(Semaphore::new(limits.connections));
    let shared = Arc::new(Shared { engine, limits, held: Semaphore::new(HELD_KIB) });
    // Relaxed: a lone flag, read in a polling loop.
    while !stop.load(Ordering::Relaxed) {
        let Ok(accepted) = timeout(POLL, listener.accept()).await else { continue };
        let mut stream = match accepted {
            Ok((stream, _)) => stream,
            Err(e) => {
                // No file descriptor is left, say: some may be soon.
                tracing::warn!("cannot accept a connection: {e}");
                tokio::time::sleep(POLL).await;
                continue;
            }
        };
        let Ok(permit) = connections.clone().try_acquire_owned() else {
            shared.engine.metrics.answered("other", StatusCode::SERVICE_UNAVAILABLE, Duration::ZERO);
            tokio::spawn(async move {
                let body = r#"{"error":"too many connections","where":"connection"}"#;
                let head =
                    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n";
                let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                let _ = timeout(POLL, stream.write_all(answer.as_bytes())).await;
            });
            continue;
        };
        let _ = stream.set_nodelay(true);
        let of = shared.clone();
        let service = service_fn(move |request| answer(of.clone(), request));
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(limits.patience).half_close(true).max_buf_size(64 << 10);
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            // A client that broke off is its own affair.
            let _ = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    let _ = timeout(LAST, graceful.shutdown()).await;
    Ok(())
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let started = Instant::now();
    let (route, result) = route(&shared, request).await;
    let (status, kind, body) = match result {
        Ok((kind, body)) => (StatusCode::OK, kind, body),
        Err(error) => (error.status, JSON, error.body()),
    };
    shared.engine.metrics.answered(route, status, started.elapsed());
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

type Answer = Result<(HeaderValue, Vec<u8>), ApiError>;

async fn route(shared: &Shared, request: Request<Incoming>) -> (&'static str, Answer) {
    let engine = &shared.engine;
    let json = |body: Vec<u8>| (JSON, body);
    match (request.method(), request.uri().path()) {
        (&Method::POST, "/v1/score") => {
            let body = read(shared, request).await;
            ("score", body.and_then(|body| engine.score(&body)).map(json))
        }
        (&Method::POST, "/v1/exposures") => {
            let body = read(shared, request).await;
            ("exposures", body.and_then(|body| engine.expose(&body)).map(json))
        }
        (&Method::GET, "/v1/dictionary") => {
            ("dictionary", engine.dictionary(request.uri().query().unwrap_or_default()).map(json))
        }
        (&Method::GET | &Method::HEAD, "/healthz") => ("healthz", Ok((JSON, br#"{"status":"ok"}"#.to_vec()))),
        (&Method::GET | &Method::HEAD, "/metrics") => ("metrics", Ok((TEXT, engine.exposition().into_bytes()))),
        (method, path) => {
            let why = format!(
                "no {method} {path}; there are POST /v1/score, POST /v1/exposures, GET /v1/dictionary, \
                               GET /healthz and GET /metrics"
            );
            ("other", Err(ApiError::new(StatusCode::NOT_FOUND, why, "path")))
        }
    }
}

/// Reads a body within the limits.
async fn read(shared: &Shared, request: Request<Incoming>) -> Result<Vec<u8>, ApiError> {
    let limits = &shared.limits;
    let too_large = || {
        let why = format!("the body is larger than {} bytes", limits.body);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, why, "body")
    };
    let is_too_large = request.body().size_hint().lower() > limits.body as u64;
    if is_too_large && request.headers().contains_key(EXPECT) {
        // The sender waits for leave to send it.
        return Err(too_large());
    }
    let stated = request.body().size_hint().upper().map_or(limits.body, |n| n.min(limits.body as u64) as usize);
    let Ok(_held) = shared.held.try_acquire_many((stated >> 10) as u32 + 1) else {
        let why = "too many bodies at once; try again";
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, why, "body"));
    };
    let mut body = request.into_body();
    let mut bytes = Vec::new();
    let mut seen = 0;
    let reading = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| ApiError::new(StatusCode::BAD_REQUEST, e.to_string(), "body"))?;
            if let Ok(data) = frame.into_data() {
                seen += data.len();
                if seen <= limits.body {
                    bytes.extend_from_slice(&data);
                } else {
                    bytes = Vec::new();
                }
                if seen > MOST_DROPPED {
                    break;
                }
            }
        }
        Ok::<(), ApiError>(())
    };
    let done = timeout(limits.patience, reading).await;
    if is_too_large || seen > limits.body {
        return Err(too_large());
    }
    match done {
        Ok(Ok(())) => Ok(bytes),
        Ok(Err(e)) => Err(e),
        Err(_) => {
            let why = format!("the body did not arrive within {} s", limits.patience.as_secs_f64());
            Err(ApiError::new(StatusCode::BAD_REQUEST, why, "body"))
        }
    }
}
