//! A server that uses HTTP/2 directly and none of our code, so that it can misbehave in every way.
//! The scenarios use it, too.

use std::{
    future::{Future, poll_fn},
    net::SocketAddr,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::{RecvStream, SendStream, server::SendResponse};
use http::{HeaderMap, Request, Response};
use tokio::{net::TcpListener, task::JoinSet};

/// Starts a server on loopback, on a free port. It ends when the returned set is dropped.
pub async fn server<F>(
    answer: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + Send + 'static,
) -> (SocketAddr, JoinSet<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (listener.local_addr().unwrap(), serve(listener, answer))
}

/// Answers each call with `answer`, in its own task. The server and all connections end when the
/// returned set is dropped.
pub fn serve<F>(
    listener: TcpListener,
    answer: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + Send + 'static,
) -> JoinSet<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            connections.spawn(async move {
                let Ok(mut connection) = h2::server::handshake(stream).await else {
                    return;
                };
                let mut calls = JoinSet::new();
                while let Some(Ok((request, respond))) = connection.accept().await {
                    calls.spawn(answer(request, respond));
                }
            });
        }
    });
    tasks
}

/// Wraps a message in a frame of gRPC.
pub fn frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.put_slice(message);
    frame.freeze()
}

/// Sends the headers of an answer whose messages follow.
pub fn open(mut respond: SendResponse<Bytes>) -> SendStream<Bytes> {
    let head = Response::builder()
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    respond.send_response(head, false).unwrap()
}

/// Sends data as fast as the other side reads. Returns whether it was sent.
pub async fn send(stream: &mut SendStream<Bytes>, mut data: Bytes) -> bool {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let Some(Ok(capacity)) = poll_fn(|context| stream.poll_capacity(context)).await else {
            return false;
        };
        if stream
            .send_data(data.split_to(capacity.min(data.len())), false)
            .is_err()
        {
            return false;
        }
    }
    true
}

/// Ends an answer with status OK.
pub fn close(mut stream: SendStream<Bytes>) {
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
    let _ = stream.send_trailers(trailers);
}

/// Answers with one message and status OK.
pub fn unary(respond: SendResponse<Bytes>, message: &[u8]) {
    let mut stream = open(respond);
    let _ = stream.send_data(frame(message), false);
    close(stream);
}

/// Answers that there is no such method.
pub fn unimplemented(mut respond: SendResponse<Bytes>) {
    let head = Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", "12")
        .body(())
        .unwrap();
    let _ = respond.send_response(head, true);
}
