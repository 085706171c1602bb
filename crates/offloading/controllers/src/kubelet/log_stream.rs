//! The body of a log on its way to the caller.

use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::stream;
use http_body_util::BodyExt as _;
use tokio_util::sync::CancellationToken;

/// Time that the last line has to leave, because a body that fails drops what was not sent.
const LINGER: Duration = Duration::from_millis(200);

/// The reason why a log ended early.
#[derive(Debug, thiserror::Error)]
enum LogCut {
    #[error(
        "the kubelet API of the virtual node stopped (Liqo's manager restarts, or the node goes)"
    )]
    Stopped,
    #[error("the connection to the other cluster broke: {0}")]
    Broke(#[source] kube::Error),
}

/// The rest of a log.
enum LogRest {
    Lines {
        body: kube::client::Body,
        ends_line: bool,
    },
    Failed(LogCut),
    Nothing,
}

/// The log as the peer sends it. If that breaks, or at `stop`, the body fails: without its last
/// chunk in HTTP/1.1, with a reset of the stream in HTTP/2. The API server hides this from its own
/// caller (it ends its answer in order), so a last line says it, too: a kubelet also writes into
/// the log that it cannot go on.
pub(super) fn log_body(body: kube::client::Body, stop: CancellationToken) -> Body {
    let lines = stream::unfold(
        (
            LogRest::Lines {
                body,
                ends_line: true,
            },
            stop,
        ),
        |(rest, stop)| async move {
            let (mut body, ends_line) = match rest {
                LogRest::Lines { body, ends_line } => (body, ends_line),
                LogRest::Failed(cut) => {
                    tokio::time::sleep(LINGER).await;
                    return Some((Err(cut), (LogRest::Nothing, stop)));
                }
                LogRest::Nothing => return None,
            };
            let next = tokio::select! {
                biased;
                () = stop.cancelled() => Err(LogCut::Stopped),
                next = next_data(&mut body) => next,
            };
            match next {
                Ok(None) => None,
                Ok(Some(data)) => {
                    let ends_line = data.last().map_or(ends_line, |&last| last == b'\n');
                    Some((Ok(data), (LogRest::Lines { body, ends_line }, stop)))
                }
                Err(cut) => {
                    let line = format!(
                        "{}liqo: the log ends here: {cut}\n",
                        if ends_line { "" } else { "\n" }
                    );
                    Some((Ok(line.into()), (LogRest::Failed(cut), stop)))
                }
            }
        },
    );
    Body::from_stream(lines)
}

async fn next_data(body: &mut kube::client::Body) -> Result<Option<Bytes>, LogCut> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(LogCut::Broke)?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}
