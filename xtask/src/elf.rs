//! Contents of an ELF file: its loader, the libraries that it needs, its exports, and the code at an address.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{ElfFile, FileHeader as _, ProgramHeader as _};
use object::{
    LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, ObjectSymbolTable as _,
    RelocationFlags, RelocationTarget, SymbolKind,
};

/// A 64-bit little-endian file: every processor with a library of the marker uses that form.
pub struct Elf<'data> {
    file: ElfFile<'data, FileHeader64<LittleEndian>>,
}

/// A symbol that the file defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The symbol's address.
    pub value: u64,
    /// Size of the symbol in bytes.
    pub size: u64,
}

impl<'data> Elf<'data> {
    /// Reads the headers and tables.
    ///
    /// # Errors
    /// When the bytes are no such file.
    pub fn parse(bytes: &'data [u8]) -> Result<Self> {
        let file = ElfFile::parse(bytes).context("this is no 64-bit little-endian ELF file")?;
        Ok(Self { file })
    }

    /// The file's processor, as `EM_*`.
    #[must_use]
    pub fn machine(&self) -> u16 {
        self.file.elf_header().e_machine(LittleEndian)
    }

    /// Path of the loader; a static program and a library have none.
    ///
    /// # Errors
    /// When the segment that names it is cut off.
    pub fn interpreter(&self) -> Result<Option<String>> {
        for segment in self.file.elf_program_headers() {
            if let Some(path) = segment.interpreter(LittleEndian, self.file.data())? {
                return Ok(Some(text(path)));
            }
        }
        Ok(None)
    }

    /// Names of the libraries that the loader must find, in the loader's order.
    ///
    /// # Errors
    /// When the table that names them is cut off.
    pub fn needed(&self) -> Result<Vec<String>> {
        let sections = self.file.elf_section_table();
        let dynamic = sections.dynamic_table(LittleEndian, self.file.data())?;
        dynamic
            .iter()
            .filter(|entry| entry.tag == DT_NEEDED)
            .map(|entry| Ok(text(dynamic.string(entry)?)))
            .collect()
    }

    /// Libraries with the versions of their symbols that the file needs.
    ///
    /// # Errors
    /// When the table that names them is cut off.
    pub fn versions(&self) -> Result<Vec<(String, String)>> {
        let data = self.file.data();
        let sections = self.file.elf_section_table();
        let mut found = Vec::new();
        let Some((mut libraries, link)) = sections.gnu_verneed(LittleEndian, data)? else {
            return Ok(found);
        };
        let strings = sections.strings(LittleEndian, data, link)?;
        while let Some((library, mut versions)) = libraries.next()? {
            while let Some(version) = versions.next()? {
                found.push((
                    text(library.file(LittleEndian, strings)?),
                    text(version.name(LittleEndian, strings)?),
                ));
            }
        }
        Ok(found)
    }

    /// The dynamic symbols that the file defines, by name.
    #[must_use]
    pub fn exported(&self) -> BTreeMap<String, Symbol> {
        self.file
            .dynamic_symbols()
            .filter(|symbol| symbol.is_definition())
            .filter_map(|symbol| {
                let place = Symbol {
                    value: symbol.address(),
                    size: symbol.size(),
                };
                Some((text(symbol.name_bytes().ok()?), place))
            })
            .collect()
    }

    /// Offset of an exported variable of each thread in its library's block.
    #[must_use]
    pub fn thread_local(&self, name: &str) -> Option<u64> {
        self.file
            .dynamic_symbols()
            .find(|symbol| {
                !symbol.is_undefined()
                    && symbol.kind() == SymbolKind::Tls
                    && symbol.name_bytes() == Ok(name.as_bytes())
            })
            .map(|symbol| symbol.address())
    }

    /// Address of the first place that the loader fills with a relocation of this type for a symbol.
    #[must_use]
    pub fn relocation(&self, name: &str, kind: u32) -> Option<u64> {
        let symbols = self.file.dynamic_symbol_table()?;
        self.file
            .dynamic_relocations()?
            .find(|(_, relocation)| {
                relocation.flags() == RelocationFlags::Elf { r_type: kind }
                    && matches!(relocation.target(), RelocationTarget::Symbol(index)
                        if symbols.symbol_by_index(index).is_ok_and(|symbol| symbol.name_bytes() == Ok(name.as_bytes())))
            })
            .map(|(address, _)| address)
    }

    /// The `length` bytes at an address, from the section that holds them.
    #[must_use]
    pub fn bytes(&self, address: u64, length: u64) -> Option<&'data [u8]> {
        self.file
            .sections()
            .find_map(|section| section.data_range(address, length).ok().flatten())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::Elf;

    /// The test program itself: linked with the C library, with the loader of its processor.
    #[test]
    fn a_program_names_its_loader_and_libraries() {
        let bytes = std::fs::read("/proc/self/exe").expect("readable");
        let elf = Elf::parse(&bytes).expect("an ELF file");
        let loader = elf.interpreter().expect("whole").expect("not static");
        assert!(loader.contains("/ld-linux"), "{loader}");
        let needed = elf.needed().expect("whole");
        assert!(needed.iter().any(|name| name == "libc.so.6"), "{needed:?}");
    }

    /// The library that the machine's own loader has mapped into this process.
    #[test]
    fn a_library_exports_functions_that_have_code() {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
        let path = maps
            .lines()
            .find_map(|line| {
                line.split_ascii_whitespace()
                    .last()?
                    .strip_suffix("libc.so.6")
            })
            .expect("the C library is mapped");
        let bytes = std::fs::read(format!("{path}libc.so.6")).expect("readable");
        let elf = Elf::parse(&bytes).expect("an ELF file");
        let getpid = elf.exported()["getpid"];
        let code = elf.bytes(getpid.value, getpid.size).expect("in a section");
        assert!(getpid.size > 0 && code.iter().any(|byte| *byte != 0));
        assert!(elf.bytes(u64::MAX - 8, 4).is_none());
    }

    #[test]
    fn a_file_that_is_no_elf_is_refused() {
        assert!(Elf::parse(b"#!/bin/sh").is_err());
        assert!(Elf::parse(&[]).is_err());
    }
}
