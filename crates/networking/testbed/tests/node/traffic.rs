//! Servers in pods and on nodes, and clients that check what the servers answer.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use liqo_datapath_testbed::namespace::NetworkNamespace;

/// Port of the server that answers with the address that it sees.
pub const PORT: u16 = 8080;
pub const ANY_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
pub const ANY_V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
const UPLOADS: u16 = 8081;
const ECHO: u16 = 8082;
/// Port that listens for single datagrams.
pub const DATAGRAMS: u16 = 8083;
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a test tries before it takes a port for closed: long enough for three SYN packets (at 0
/// s, 1 s and 3 s).
pub const CLOSED_AFTER: Duration = Duration::from_secs(4);
/// How long an open connection may be silent.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);

/// Starts servers in a namespace: one answers with the address that it sees, one counts uploaded
/// bytes, and two echo, over TCP and UDP.
pub fn serve_in(pod: &NetworkNamespace) -> io::Result<()> {
    let listen = |port| pod.run(move || TcpListener::bind((ANY_V6, port)))?;
    serve(listen(PORT)?, |mut stream| {
        let seen = stream.peer_addr()?.ip().to_canonical().to_string();
        stream.write_all(seen.as_bytes())
    });
    serve(listen(UPLOADS)?, |mut stream| {
        let count = io::copy(&mut stream, &mut io::sink())?;
        stream.write_all(count.to_string().as_bytes())
    });
    serve(listen(ECHO)?, |mut stream| {
        let mut byte = [0];
        while stream.read(&mut byte)? == 1 {
            stream.write_all(&byte)?;
        }
        Ok(())
    });
    let socket = pod.run(|| UdpSocket::bind((ANY_V6, ECHO)))??;
    thread::spawn(move || {
        let mut datagram = vec![0; 65536];
        while let Ok((length, from)) = socket.recv_from(&mut datagram) {
            // The client may be gone.
            let _ = socket.send_to(&datagram[..length], from);
        }
    });
    Ok(())
}

/// A connection to the echo server that stays open.
pub struct EchoConnection(TcpStream);

impl EchoConnection {
    pub fn with(address: IpAddr) -> io::Result<Self> {
        let stream = connect(address, ECHO, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Sends many bytes and receives them back, few at a time.
    pub fn exchange_many(&mut self, bytes: usize) -> io::Result<()> {
        let mut block = vec![7; 1 << 16];
        for _ in 0..bytes / block.len() {
            self.0.write_all(&block)?;
            self.0.read_exact(&mut block)?;
        }
        Ok(())
    }

    /// Sends one byte and receives it back.
    pub fn exchange(&mut self, byte: u8) -> io::Result<()> {
        self.say(byte)?;
        self.hear(byte)
    }

    pub fn say(&mut self, byte: u8) -> io::Result<()> {
        self.0.write_all(&[byte])
    }

    pub fn hear(&mut self, byte: u8) -> io::Result<()> {
        let mut heard = [0];
        self.0.read_exact(&mut heard)?;
        if heard == [byte] {
            Ok(())
        } else {
            Err(io::Error::other("something else came back"))
        }
    }

    /// Whether nothing comes back any more.
    pub fn is_cut(&mut self) -> io::Result<bool> {
        self.0.set_read_timeout(Some(CLOSED_AFTER))?;
        Ok(self.exchange(0).is_err())
    }
}

/// Waits until this is so. Panics after a while.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + IDLE_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn serve(
    listener: TcpListener,
    answer: impl Fn(TcpStream) -> io::Result<()> + Clone + Send + 'static,
) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), answer) = (stream, answer.clone()) else {
                return;
            };
            // The client may be gone.
            thread::spawn(move || answer(stream));
        }
    });
}

fn connect(address: IpAddr, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&(address, port).into(), timeout)?;
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
    Ok(stream)
}

/// The address that the server at `address` sees as the sender.
pub fn ask(address: IpAddr) -> io::Result<IpAddr> {
    ask_within(address, PORT, CONNECT_TIMEOUT)
}

/// The same from a server at this port.
pub fn ask_at(address: IpAddr, port: u16) -> io::Result<IpAddr> {
    ask_within(address, port, CONNECT_TIMEOUT)
}

/// The same with another timeout of the connection.
pub fn ask_within(address: IpAddr, port: u16, timeout: Duration) -> io::Result<IpAddr> {
    let mut answer = String::new();
    connect(address, port, timeout)?.read_to_string(&mut answer)?;
    answer.parse().map_err(io::Error::other)
}

/// Uploads this many bytes and returns how many the server counted.
pub fn upload(address: IpAddr, bytes: usize) -> io::Result<usize> {
    let mut stream = connect(address, UPLOADS, CONNECT_TIMEOUT)?;
    stream.write_all(&vec![7; bytes])?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    answer.parse().map_err(io::Error::other)
}

/// Sends a datagram and waits for no answer.
pub fn send(from: IpAddr, to: SocketAddr) -> io::Result<()> {
    UdpSocket::bind((from, 0))?.send_to(b"hello", to).map(drop)
}

/// Sends a datagram of this many bytes and returns how many came back.
pub fn echo(address: IpAddr, bytes: usize) -> io::Result<usize> {
    let from = if address.is_ipv4() { ANY_V4 } else { ANY_V6 };
    echo_within(from, address, bytes, IDLE_TIMEOUT)
}

/// The same from one address of several. The first datagrams may be too large for the path and get
/// lost, until the sender learns that.
pub fn echo_in_the_end(from: IpAddr, address: IpAddr, bytes: usize) -> io::Result<usize> {
    eventually(CONNECT_TIMEOUT, || {
        echo_within(from, address, bytes, Duration::from_millis(100))
    })
}

fn echo_within(
    from: IpAddr,
    address: IpAddr,
    bytes: usize,
    timeout: Duration,
) -> io::Result<usize> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.set_read_timeout(Some(timeout))?;
    socket.send_to(&vec![7; bytes], (address, ECHO))?;
    socket.recv(&mut vec![0; 65536])
}

/// Tries until it works or the time is over.
pub fn eventually<T>(
    timeout: Duration,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let end = Instant::now() + timeout;
    loop {
        match attempt() {
            Err(error) if Instant::now() < end => drop(error),
            outcome => return outcome,
        }
    }
}
