//! Times, the link's speed, and the table.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use burn::tensor::backend::Backend;
use cubecl::cuda::CudaDevice;
use cudarc::driver::{CudaContext, result, sys};
use serde::Serialize;

/// The median of some runs, and how far they were apart.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Time {
    /// The median, in milliseconds.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

/// Times `run`, which queues work on the device, over `runs` runs with one wait for the device at the
/// end of each. The first is not counted.
pub fn time<B: Backend<Device = CudaDevice>>(runs: usize, mut run: impl FnMut()) -> Time {
    let device = CudaDevice::default();
    let mut times = Vec::new();
    for at in 0..=runs {
        B::sync(&device).expect("the device works");
        let start = Instant::now();
        run();
        B::sync(&device).expect("the device works");
        if at > 0 {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Time::of(times)
}

impl Time {
    /// The median of `times` and how far they are apart.
    pub fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self {
            median: times[times.len() / 2],
            least: times[0],
            most: times[times.len() - 1],
        }
    }

    /// The time of one of `n` that were timed together.
    pub fn each(self, n: usize) -> Self {
        let n = n as f64;
        Self {
            median: self.median / n,
            least: self.least / n,
            most: self.most / n,
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.3} ({:.3} to {:.3})",
            self.median, self.least, self.most
        )
    }
}

/// The copy engine's speed from page-locked memory, in bytes a second: the median of nine copies of
/// 1 GiB in pieces of 128 MiB.
pub fn link_speed() -> f64 {
    const PIECE: usize = 128 << 20;
    const PIECES: usize = 8;
    let context = CudaContext::new(0).expect("there is a GPU");
    context.bind_to_thread().expect("it answers");
    let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
        .expect("the driver makes streams");
    // SAFETY: a context is current. The memory is used below only, and freed after the last wait.
    let (host, device) = unsafe {
        let host = result::malloc_host(PIECE, sys::CU_MEMHOSTALLOC_PORTABLE);
        (
            host.expect("there is memory"),
            result::malloc_sync(PIECE).expect("there is memory"),
        )
    };
    // SAFETY: it is that many live bytes, zeroed or not.
    let source = unsafe { std::slice::from_raw_parts(host.cast::<u8>(), PIECE) };
    let mut speeds = Vec::new();
    for at in 0..10 {
        let start = Instant::now();
        for _ in 0..PIECES {
            // SAFETY: both ends have `PIECE` bytes and live until after the wait.
            unsafe { result::memcpy_htod_async(device, source, stream) }.expect("it copies");
        }
        // SAFETY: the stream is live.
        unsafe { result::stream::synchronize(stream) }.expect("it copies");
        if at > 0 {
            speeds.push((PIECE * PIECES) as f64 / start.elapsed().as_secs_f64());
        }
    }
    // SAFETY: all copies have ended.
    unsafe {
        result::free_host(host).expect("it is taken back");
        result::free_sync(device).expect("it is taken back");
        result::stream::destroy(stream).expect("it is taken back");
    }
    speeds.sort_by(f64::total_cmp);
    speeds[speeds.len() / 2]
}

/// Runs `run` while the copy engine copies page-locked memory to the device all the time.
pub fn with_busy_link<T>(run: impl FnOnce() -> T) -> T {
    const PIECE: usize = 128 << 20;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let context = CudaContext::new(0).expect("there is a GPU");
            context.bind_to_thread().expect("it answers");
            let kind = result::stream::StreamKind::NonBlocking;
            let stream = result::stream::create(kind).expect("the driver makes streams");
            // SAFETY: a context is current; the memory is used by the copies below only, and freed
            // after the wait for the last. The source is that many live bytes.
            unsafe {
                let host = result::malloc_host(PIECE, sys::CU_MEMHOSTALLOC_PORTABLE)
                    .expect("there is memory");
                let device = result::malloc_sync(PIECE).expect("there is memory");
                let source = std::slice::from_raw_parts(host.cast::<u8>(), PIECE);
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..2 {
                        result::memcpy_htod_async(device, source, stream).expect("it copies");
                    }
                    result::stream::synchronize(stream).expect("it copies");
                }
                result::free_host(host).expect("it is taken back");
                result::free_sync(device).expect("it is taken back");
                result::stream::destroy(stream).expect("it is taken back");
            }
        });
        let output = run();
        stop.store(true, Ordering::Relaxed);
        output
    })
}

/// Device memory in use, in bytes.
pub fn device_used() -> u64 {
    let context = CudaContext::new(0).expect("there is a GPU");
    context.bind_to_thread().expect("it answers");
    let (free, total) = result::mem_get_info().expect("it answers");
    (total - free) as u64
}

/// The lines that were measured.
#[derive(Default)]
pub struct Table {
    lines: Vec<[String; 6]>,
}

/// One figure.
#[derive(Serialize)]
pub struct Line<'a> {
    /// Which part of the benchmark.
    pub part: &'a str,
    /// Which case of it.
    pub case: String,
    /// The wrapped backend, and how weights were read.
    pub mode: String,
    /// The time of one pass or step.
    pub time: Time,
    /// The bytes of offloaded weights in one.
    pub offloaded_bytes: u64,
    /// The link's speed in this run, in bytes a second.
    pub link: f64,
    /// The time of the same with all weights resident, in milliseconds.
    pub resident: f64,
    /// Device memory for copies, in bytes.
    pub staging_bytes: u64,
    /// Device memory in use at the end of it, in bytes.
    pub device_bytes: u64,
    /// Whether the result was that of resident weights, bit for bit.
    pub identical: bool,
}

impl Table {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is no figure in it.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Prints a figure, and keeps it.
    pub fn add(&mut self, line: Line<'_>) {
        println!(
            "{}",
            serde_json::to_string(&line).expect("it is plain data")
        );
        let link_time = line.offloaded_bytes as f64 / line.link * 1e3;
        let bound = link_time.max(line.resident);
        let share = if line.offloaded_bytes == 0 {
            "".into()
        } else {
            format!("{:.3}", link_time / line.time.median)
        };
        self.lines.push([
            format!("{} {}", line.part, line.case),
            line.mode,
            line.time.to_string(),
            share,
            format!("{:.3}", line.time.median / bound),
            if line.identical { "yes" } else { "NO" }.into(),
        ]);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| case | weights | ms, median (least to most) | share of link | time / max(link, resident) | \
             same bits |\n| --- | --- | --- | --- | --- | --- |"
        )?;
        for line in &self.lines {
            writeln!(f, "| {} |", line.join(" | "))?;
        }
        Ok(())
    }
}
