//! Requests that a server must survive, each with the answer that it should get.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::client::Client;

/// What came of hostile requests.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Storm {
    pub sent: u64,
    /// Requests by kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// The first answers that were not as they should be.
    pub wrong: Vec<String>,
}

/// Most wrong answers that are kept.
const MOST_WRONG: usize = 20;
/// How long a silent connection is waited for.
const WAIT: Duration = Duration::from_secs(600);

/// A request over HTTP and the status of its answer.
struct Case {
    kind: &'static str,
    method: &'static str,
    path: &'static str,
    body: Vec<u8>,
    status: u16,
}

/// Sends at least `count` hostile requests of all kinds in turn; `good` is the body of a request that is answered with 200, `ts_ms` a time
/// of the day that is served. `progress` is called between them with the number sent.
///
/// # Errors
/// A server that cannot be reached.
pub fn storm(
    address: SocketAddr,
    good: &str,
    ts_ms: u64,
    count: u64,
    progress: &mut dyn FnMut(u64),
) -> std::io::Result<Storm> {
    let mut storm = Storm::default();
    let cases = cases(good, ts_ms);
    while storm.sent < count {
        for case in &cases {
            storm.case(address, case);
        }
        storm.broken_off(address)?;
        storm.half_closed(address, good)?;
        storm.noise(address)?;
        progress(storm.sent);
    }
    Ok(storm)
}

fn cases(good: &str, ts_ms: u64) -> Vec<Case> {
    let post = |kind, path, body: Vec<u8>, status| Case { kind, method: "POST", path, body, status };
    let score = |kind, body: Vec<u8>, status| post(kind, "/v1/score", body, status);
    let other = |method, path, status| Case { kind: "bad route or query", method, path, body: vec![], status };
    vec![
        score("bad JSON", b"{".to_vec(), 400),
        score("bad JSON", b"".to_vec(), 400),
        score("bad JSON", b"\xff\xfe\x00".to_vec(), 400),
        score("bad JSON", b"[1,2,3]".to_vec(), 400),
        score("bad JSON", "[".repeat(100_000).into_bytes(), 400),
        score("NaN", good.replacen("\"ecpm\":", "\"ecpm\":NaN,\"x\":", 1).into_bytes(), 400),
        score("NaN", good.replacen("\"ecpm\":", "\"ecpm\":1e400,\"x\":", 1).into_bytes(), 400),
        score("unknown contract", queue_of(1, ts_ms).replace("\"A\"", "\"C\"").into_bytes(), 400),
        score("another day", queue_of(1, ts_ms + 86_400_000).into_bytes(), 400),
        score("queue of 512", queue_of(512, ts_ms).into_bytes(), 200),
        score("queue of 513", queue_of(513, ts_ms).into_bytes(), 400),
        score("array of 257", format!("[{}]", vec![good; 257].join(",")).into_bytes(), 413),
        score("10 MB", vec![b' '; 10 << 20], 413),
        post("bad exposures", "/v1/exposures", b"{}".to_vec(), 400),
        post("bad exposures", "/v1/exposures", br#"[{"request_id":-1,"ad_id":1,"ts_ms":1}]"#.to_vec(), 400),
        other("GET", "/v1/dictionary?ad_id=x", 400),
        other("GET", "/v1/dictionary?ad_id=99999999&slot_id=1&pac_bucket=3", 404),
        other("GET", "/v1/dictionary?ad_id=1&pac_bucket=999999", 400),
        other("DELETE", "/v1/score", 404),
        other("GET", "/../../etc/passwd", 404),
    ]
}

/// A request whose queue has so many auction ads.
fn queue_of(entries: u64, ts_ms: u64) -> String {
    let entry = |i| json!({"ad_id": 1_000_000 + i, "type": "A", "ecpm": 10.0, "pctr": 0.1, "filter": 0});
    let queue: Vec<Value> = (0..entries).map(entry).collect();
    json!({"request_id": 1, "ts_ms": ts_ms, "slot_id": 1, "region": 1, "gender": 1, "age": 1, "queue": queue})
        .to_string()
}

impl Storm {
    /// Adds what came of others.
    pub fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.wrong.extend(other.wrong);
        for (kind, count) in other.kinds {
            *self.kinds.entry(kind).or_default() += count;
        }
    }

    fn count(&mut self, kind: &'static str) {
        self.sent += 1;
        *self.kinds.entry(kind).or_default() += 1;
    }

    fn check(&mut self, right: bool, what: impl FnOnce() -> String) {
        if !right && self.wrong.len() < MOST_WRONG {
            self.wrong.push(what());
        }
    }

    fn case(&mut self, address: SocketAddr, case: &Case) {
        let &Case { kind, method, path, ref body, status } = case;
        self.count(kind);
        match Client::connect(address).and_then(|mut client| client.send(method, path, body)) {
            Err(e) => self.check(false, || format!("{kind}: {e}")),
            Ok((got, answer)) => {
                // Whatever is refused is refused in words.
                let said = serde_json::from_slice::<Value>(&answer).unwrap_or_default();
                let worded = got < 400 || (said["error"].is_string() && said["where"].is_string());
                let text = || format!("{kind}: {got} for {status}: {}", String::from_utf8_lossy(&answer));
                self.check(got == status && worded, text);
            }
        }
    }

    /// Half a request, then the end: nobody is there to answer.
    fn broken_off(&mut self, address: SocketAddr) -> std::io::Result<()> {
        self.count("broken off");
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")?;
        stream.shutdown(Shutdown::Both)
    }

    /// A whole request whose sender closes its side: it is answered.
    fn half_closed(&mut self, address: SocketAddr, good: &str) -> std::io::Result<()> {
        self.count("half-closed");
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(WAIT))?;
        write!(stream, "POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{good}", good.len())?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        let right = read.is_ok() && answer.starts_with(b"HTTP/1.1 200");
        self.check(right, || format!("half-closed: {}", String::from_utf8_lossy(&answer)));
        Ok(())
    }

    /// The beginning of TLS instead of HTTP.
    fn noise(&mut self, address: SocketAddr) -> std::io::Result<()> {
        self.count("no HTTP");
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(WAIT))?;
        stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")?;
        let mut answer = Vec::new();
        // The end of the connection may come as a reset: bytes were left unread.
        let _ = stream.read_to_end(&mut answer);
        let right = answer.is_empty() || answer.starts_with(b"HTTP/1.1 400");
        self.check(right, || format!("no HTTP: {}", String::from_utf8_lossy(&answer)));
        Ok(())
    }
}

/// Clients that send a part of a request and then nothing.
pub struct Slow {
    streams: Vec<(TcpStream, &'static str)>,
}

impl Slow {
    /// Opens `count` connections of each kind: a header that never ends, and a body that never comes.
    ///
    /// # Errors
    /// A server that cannot be reached.
    pub fn open(address: SocketAddr, count: usize) -> std::io::Result<Self> {
        let header = "POST /v1/score HTTP/1.1\r\nx: ";
        let body = "POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n";
        let mut streams = Vec::new();
        for (text, answer) in [(header, ""), (body, "HTTP/1.1 400")].repeat(count) {
            let mut stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(WAIT))?;
            stream.write_all(text.as_bytes())?;
            streams.push((stream, answer));
        }
        Ok(Self { streams })
    }

    /// Waits until the server has given up on all of them, and adds them to `storm`.
    pub fn given_up(self, storm: &mut Storm) {
        for (mut stream, starts) in self.streams {
            storm.count("slow");
            let mut answer = Vec::new();
            let ended = stream.read_to_end(&mut answer).is_ok();
            let right = ended && answer.starts_with(starts.as_bytes());
            storm.check(right, || format!("slow: {}", String::from_utf8_lossy(&answer)));
        }
    }
}
