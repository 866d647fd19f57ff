//! The script and the style of a report: those of the server's pages in one text each, which the report's policy names by
//! their digests.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

/// What a report may load and run: only its own script and style. <https://www.w3.org/TR/CSP3/#grammardef-hash-source>
pub(super) const POLICY: &str = "default-src 'none'; script-src 'SCRIPT'; style-src 'STYLE'; img-src data:; base-uri 'none'; \
    form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Modules after the report's own, each after those that it imports.
const MODULES: [(&str, &str); 5] = [
    ("draw.js", include_str!("../draw.js")),
    ("live.js", include_str!("../live.js")),
    ("memory.js", include_str!("../memory.js")),
    ("timeline.js", include_str!("../timeline.js")),
    ("lanes.js", include_str!("../lanes.js")),
];
/// Where parts of a report differ from the server's pages.
const STYLE: &str = "a:not([href]){color:inherit;text-decoration:none}a[rel]:not([href]),.lane-set .buttons a:not([href]){cursor:pointer}\
    nav.pages a:not([href]){display:none}details.part>summary h2{display:inline-block;border:0;margin:.4rem 0}\
    details.part>summary{color:var(--ink)}thead tr:last-child th{cursor:pointer}";

/// The source of a policy for a text.
pub(super) fn digest(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

/// The style of the report.
pub(super) fn style() -> String {
    include_str!("../page.css").to_owned() + STYLE
}

/// A module as a function of a larger script: imports are those of the functions before it.
fn module(name: &str, text: &str) -> String {
    let (mut lines, mut exports) = (Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some(import) = line.strip_prefix("import ") {
            let (names, from) = import.split_once(" from \"./").unwrap_or((import, ""));
            let from = from.trim_end_matches([';', '"']);
            let names = names.replace(" as ", ": ");
            lines.push(format!("const {names} = modules[\"{from}\"];"));
        } else if let Some(exported) = line.strip_prefix("export ") {
            let words = exported.split([' ', '(']);
            let mut words = words.filter(|it| !matches!(*it, "const" | "function" | "async"));
            exports.extend(words.next());
            lines.push(exported.to_owned());
        } else {
            lines.push(line.to_owned());
        }
    }
    let (text, exports) = (lines.join("\n"), exports.join(", "));
    format!("modules[\"{name}\"] = (() => {{\n{text}\nreturn {{ {exports} }};\n}})();\n")
}

/// The script of the report; without a time line where the application has no tasks.
pub(super) fn script(has_tasks: bool) -> String {
    let own = include_str!("../report.js").replace("export function", "function");
    let modules = MODULES
        .iter()
        .filter(|(name, _)| has_tasks || *name != "timeline.js");
    let modules: String = modules.map(|(name, text)| module(name, text)).collect();
    // An end of the element within the text would end it.
    format!("{own}\nconst modules = {{}};\n{modules}").replace("</script", "<\\/script")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_functions_of_one_script() {
        let text = module(
            "b.js",
            "import { a, c as d } from \"./a.js\";\nexport const e = 1;\nexport async function f(g) {}\nconst h = d;",
        );
        assert_eq!(
            text,
            "modules[\"b.js\"] = (() => {\nconst { a, c: d } = modules[\"a.js\"];\nconst e = 1;\nasync function f(g) {}\nconst h = d;\nreturn { e, f };\n})();\n"
        );
        let all = script(true);
        for word in ["\nimport ", "\nexport ", "</script"] {
            assert!(!all.contains(word), "{word}");
        }
        assert!(!script(false).contains("modules[\"timeline.js\"] ="));
    }

    #[test]
    fn a_digest_is_that_of_other_tools() {
        // printf '' | openssl dgst -sha256 -binary | base64
        assert_eq!(
            digest(""),
            "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
        );
    }
}
