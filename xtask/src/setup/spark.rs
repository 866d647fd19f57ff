//! Python environments with PySpark: each is a whole Spark distribution of one version.

use anyhow::Result;

use super::python;
use crate::paths::Paths;
use crate::step::{Stamp, Steps};

/// Compares every installed file with pip's own record, which detects an interrupted installation. Only the jars of versions
/// before 3.5 are used, whose Python code does not know a newer Python.
const VERIFY: &str = "
import importlib.metadata, sys
found = importlib.metadata.distribution('pyspark')
for file in found.files:
    path = file.locate()
    if file.size is not None and (not path.exists() or path.stat().st_size != file.size):
        sys.exit(f'{path} is not as it was installed')
if sys.argv[1] > '3.5':
    import pyspark
    assert pyspark.__version__ == found.version
sys.exit(0 if found.version == sys.argv[1] else f'it is PySpark {found.version}')
";

/// Step: the environment of one Spark version.
pub(super) fn environment(paths: &Paths, steps: &mut Steps, version: &str) -> Result<()> {
    let folder = paths.spark_env(version);
    let program = folder.join("bin/python");
    let stamp = Stamp::new(
        paths.cache.join(format!("stamp/spark-{version}")),
        format!("pyspark=={version}\n"),
    );
    // A complete environment without a stamp is reused.
    let done = || {
        program.is_file()
            && (stamp.valid()
                || (python::passes(&program, &[VERIFY, version]) && stamp.write().is_ok()))
    };
    let title = format!("Spark {version} (pyspark from the Python package index, 300 to 500 MB)");
    let remedy = "check that pip reaches its index (`python3 -m pip download pyspark --no-deps -d /tmp`), then run it again";
    steps.step(
        &title,
        paths.logs().join(format!("spark-{version}.log")),
        remedy,
        done,
        |step| {
            stamp.remove()?;
            python::make(step, &folder)?;
            python::install(step, &program, [format!("pyspark=={version}")])
        },
    )
}

/// The version of PyArrow, a reader of trace files that is not Spark.
const PYARROW: &str = "26.0.1";
/// The version of DuckDB, a reader of the history's tables that is not Spark.
const DUCKDB: &str = "1.5.6";

/// Step: PyArrow and DuckDB in the environment of one Spark version.
pub(super) fn readers(paths: &Paths, steps: &mut Steps, version: &str) -> Result<()> {
    let program = paths.spark_env(version).join("bin/python");
    let check = format!(
        "import duckdb, pyarrow.dataset; assert (pyarrow.__version__, duckdb.__version__) == ('{PYARROW}', '{DUCKDB}')"
    );
    steps.step(
        &format!("PyArrow {PYARROW} and DuckDB {DUCKDB}, further readers of Parquet files"),
        paths.logs().join("readers.log"),
        python::REMEDY,
        || python::passes(&program, &[&check]),
        |step| {
            let packages = [format!("pyarrow=={PYARROW}"), format!("duckdb=={DUCKDB}")];
            python::install(step, &program, packages)
        },
    )
}
