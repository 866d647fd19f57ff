//! Processors for which programs are built, by the names that others have for them.

/// A processor of a package or of an emulated machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    /// The processor of this machine.
    X86,
    /// The processor whose emulation has a dTLB counter.
    Riscv,
    /// The other processor of servers, whose emulation has no dTLB counter.
    Arm,
}

/// The processors of workers, for which packages are made.
pub const PACKAGED: [Processor; 2] = [Processor::X86, Processor::Arm];

impl Processor {
    /// Debian's name of the processor.
    #[must_use]
    pub fn debian(self) -> &'static str {
        match self {
            Self::X86 => "amd64",
            Self::Riscv => "riscv64",
            Self::Arm => "arm64",
        }
    }

    /// Rust's name of the processor, which the marker's jar and the names of tarballs have as well.
    #[must_use]
    pub fn rust(self) -> &'static str {
        match self {
            Self::X86 => "x86_64",
            Self::Riscv => "riscv64",
            Self::Arm => "aarch64",
        }
    }

    /// GNU's name of the processor's programs, which Debian's tools for it have in their names.
    #[must_use]
    pub fn gnu(self) -> String {
        format!("{}-linux-gnu", self.rust())
    }

    /// Rust's name of the target for which the processor's programs are built.
    #[must_use]
    pub fn target(self) -> &'static str {
        match self {
            Self::X86 => "x86_64-unknown-linux-gnu",
            Self::Riscv => "riscv64gc-unknown-linux-gnu",
            Self::Arm => "aarch64-unknown-linux-gnu",
        }
    }

    /// Whether its programs are built for another processor than this machine's.
    #[must_use]
    pub fn foreign(self) -> bool {
        self != Self::X86
    }
}
