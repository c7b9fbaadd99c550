//! One keep-alive connection to a server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A client that waits for each answer.
pub struct Client {
    stream: BufReader<TcpStream>,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects; an answer that takes longer than half a minute is an error.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self { stream: BufReader::new(stream), buffer: Vec::new() })
    }

    /// Sends a request and reads the answer: its status and body.
    ///
    /// # Errors
    /// A connection that breaks.
    pub fn send(&mut self, method: &str, path: &str, body: &[u8]) -> std::io::Result<(u16, Vec<u8>)> {
        self.buffer.clear();
        write!(self.buffer, "{method} {path} HTTP/1.1\r\nhost: admix\r\ncontent-length: {}\r\n\r\n", body.len())?;
        self.buffer.extend_from_slice(body);
        self.stream.get_mut().write_all(&self.buffer)?;
        self.answer()
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// A connection that breaks, or no HTTP.
    pub fn answer(&mut self) -> std::io::Result<(u16, Vec<u8>)> {
        let broken = || std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the connection ended within an answer");
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
        let mut length = 0;
        loop {
            line.clear();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(broken());
            }
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().map_err(|_| broken())?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((status, body))
    }
}
