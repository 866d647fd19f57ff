//! A shared object with as many symbols as are needed to read 10,000 times the same 8 MiB.

/// Symbols, all with the same name.
const SYMBOLS: u64 = 10_000;
/// Bytes of that name.
const NAME: u64 = 8 << 20;
const HEADER: u64 = 64;
const SECTION: u64 = 64;
const SYMBOL: u64 = 24;

/// The bytes of the file.
pub fn giant() -> Vec<u8> {
    let symbols_at = HEADER;
    let names_at = symbols_at + SYMBOLS * SYMBOL;
    let names_size = NAME + 2;
    let sections_at = (names_at + names_size).next_multiple_of(8);
    let mut file = Vec::with_capacity((sections_at + 4 * SECTION) as usize);
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let machine: u16 = match std::env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        _ => 243,
    };
    for half in [3, machine] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1_u32.to_le_bytes());
    for word in [0, 0, sections_at] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for half in [HEADER as u16, 56, 0, SECTION as u16, 4, 2] {
        file.extend(half.to_le_bytes());
    }
    for _ in 0..SYMBOLS {
        file.extend(1_u32.to_le_bytes());
        // A global function in section 1.
        file.extend([0x12, 0, 1, 0]);
        file.extend([0; 16]);
    }
    file.push(0);
    file.resize((names_at + 1 + NAME) as usize, b'x');
    file.resize(sections_at as usize, 0);
    // Sections: none, dynamic symbols (type 11), names (type 3), names again as names of sections.
    let sections = [
        [0; 9],
        [0, 11, 0, 0, symbols_at, SYMBOLS * SYMBOL, 2, 1, SYMBOL],
        [0, 3, 0, 0, names_at, names_size, 0, 0, 0],
        [0, 3, 0, 0, names_at, 1, 0, 0, 0],
    ];
    for [name, kind, flags, address, offset, size, link, info, entry] in sections {
        file.extend((name as u32).to_le_bytes());
        file.extend((kind as u32).to_le_bytes());
        for word in [flags, address, offset, size] {
            file.extend(word.to_le_bytes());
        }
        file.extend((link as u32).to_le_bytes());
        file.extend((info as u32).to_le_bytes());
        file.extend(1_u64.to_le_bytes());
        file.extend(entry.to_le_bytes());
    }
    file
}
