//! Sends one HTTP request over a connection that is open already, and reads the answer. The
//! connection ends with it.

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// The reason why there is no answer: the connection broke, the answer is not HTTP, or it is too
/// long.
pub type ExchangeError = Box<dyn std::error::Error + Send + Sync>;

/// Sends a request, and reads an answer of at most `max_len` bytes. The connection ends with it.
pub async fn exchange_http(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Vec<u8>>,
    max_len: usize,
) -> Result<(StatusCode, Bytes), ExchangeError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let response = sender
            .send_request(request.map(|body| Full::new(Bytes::from(body))))
            .await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), max_len)
            .collect()
            .await?;
        Ok((status, body.to_bytes()))
    };
    // Driven here instead of in a task of its own, so that the connection ends with the call.
    tokio::pin!(exchange);
    tokio::select! {
        biased;
        done = &mut exchange => done,
        driven = connection => match driven {
            Ok(()) => exchange.await,
            Err(error) => Err(error.into()),
        },
    }
}
