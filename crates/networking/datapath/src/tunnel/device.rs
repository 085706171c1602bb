//! The TUN device. The process reads the packets that the kernel routes to it; the kernel receives
//! what the process writes.

use std::{
    ffi::CString,
    io::{self, IoSlice},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::atomic::{AtomicU16, Ordering},
};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socket};
use tun_rs::{DeviceBuilder, SyncDevice};

pub(super) struct TunDevice {
    tun: SyncDevice,
    name: String,
    mtu: AtomicU16,
}

impl TunDevice {
    /// Attaches to the device of this name, or creates it. The device stays when the process ends.
    pub(super) fn open(name: &str, mtu: u16) -> io::Result<Self> {
        let tun = DeviceBuilder::new()
            .name(name)
            .mtu(mtu)
            .offload(true)
            .enable(true)
            .build_sync()?;
        tun.persist()?;
        rustix::io::ioctl_fionbio(tun.as_fd(), true)?;
        Ok(Self {
            tun,
            name: name.to_owned(),
            mtu: mtu.into(),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Makes sure that the device is up and has this MTU.
    pub(super) fn ensure_up(&self, mtu: u16) -> io::Result<()> {
        if self.tun.mtu()? != mtu {
            self.tun.set_mtu(mtu)?;
        }
        self.mtu.store(mtu, Ordering::Relaxed);
        if self.tun.is_running()? {
            Ok(())
        } else {
            self.tun.enabled(true)
        }
    }

    pub(super) fn mtu(&self) -> u16 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// Whether the kernel accepts joined UDP datagrams.
    pub(super) fn joins_udp(&self) -> bool {
        self.tun.udp_gso()
    }

    /// Reads one packet with its [offload header](super::offload), or `None` if there is none now.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.tun, buffer) {
            Ok(length) => Ok(Some(length)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        rustix::io::writev(&self.tun, parts)?;
        Ok(())
    }
}

impl AsFd for TunDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tun.as_fd()
    }
}

/// Removes the network device of this name, if it exists.
pub(super) fn remove(name: &str) -> io::Result<()> {
    const NO_SUCH_DEVICE: i32 = -nix::libc::ENODEV;
    const ANSWER_CODE: usize = 16;
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    send(
        netlink.as_raw_fd(),
        &delete_request(&CString::new(name)?),
        MsgFlags::empty(),
    )?;
    let mut answer = [0; 512];
    let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let code = answer
        .get(ANSWER_CODE..length)
        .and_then(<[u8]>::first_chunk)
        .map(|code| i32::from_ne_bytes(*code));
    match code {
        Some(0 | NO_SUCH_DEVICE) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// An `RTM_DELLINK` message for the device, with acknowledgement (rtnetlink(7)).
fn delete_request(name: &CString) -> Vec<u8> {
    const HEADERS: usize = 16 + 16;
    const DELETE_LINK: u16 = 17;
    const REQUEST_AND_ACKNOWLEDGE: u16 = 1 | 4;
    const NAME: u16 = 3;
    let name = name.as_bytes_with_nul();
    let attribute = 4 + name.len();
    let length = (HEADERS + attribute).next_multiple_of(4);
    // The kernel refuses names of more than 15 bytes.
    let mut message = u32::try_from(length)
        .unwrap_or(u32::MAX)
        .to_ne_bytes()
        .to_vec();
    message.extend(DELETE_LINK.to_ne_bytes());
    message.extend(REQUEST_AND_ACKNOWLEDGE.to_ne_bytes());
    message.resize(HEADERS, 0);
    message.extend(u16::try_from(attribute).unwrap_or(u16::MAX).to_ne_bytes());
    message.extend(NAME.to_ne_bytes());
    message.extend(name);
    message.resize(length, 0);
    message
}
