// Compiles src/ and test/ with the pinned solc and writes one JSON file for each contract: `node build.cjs [OUT]`.
// `COVERAGE=1` compiles without optimisation and adds what `tests/evm/coverage.py` reads.
// What users need goes to src/shoal/chain/artifacts of the package; what only tests need, to test/artifacts.
const fs = require("fs");
const path = require("path");
const solc = require("solc");

const here = __dirname;
const shipped = process.argv[2] || path.join(here, "../src/shoal/chain/artifacts");
const forTests = process.argv[2] || path.join(here, "test/artifacts");
const folders = { src: ["NodeRegistry", "TrainingRewards"], test: ["TestToken", "Stubborn", "Reenterer"] };

const sources = {};
for (const folder of Object.keys(folders)) {
  for (const name of fs.readdirSync(path.join(here, folder)).filter((name) => name.endsWith(".sol")).sort()) {
    sources[`${folder}/${name}`] = { content: fs.readFileSync(path.join(here, folder, name), "utf8") };
  }
}
const forCoverage = Boolean(process.env.COVERAGE);
const settings = {
  evmVersion: "cancun",
  viaIR: !forCoverage,
  optimizer: { enabled: !forCoverage, runs: 2000 },
  metadata: { bytecodeHash: "none", appendCBOR: false },
  outputSelection: { "*": { "*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object", "evm.deployedBytecode.sourceMap"], "": ["ast"] } },
};
const find = (name) => {
  try {
    return { contents: fs.readFileSync(require.resolve(name, { paths: [here] }), "utf8") };
  } catch (error) {
    return { error: String(error) };
  }
};
const output = JSON.parse(solc.compile(JSON.stringify({ language: "Solidity", sources, settings }), { import: find }));
for (const one of output.errors || []) console.error(one.formattedMessage);
if ((output.errors || []).some((one) => one.severity === "error")) process.exit(1);

for (const [folder, names] of Object.entries(folders)) {
  const out = folder === "src" ? shipped : forTests;
  fs.mkdirSync(out, { recursive: true });
  for (const [file, contracts] of Object.entries(output.contracts)) {
    for (const [name, made] of Object.entries(contracts)) {
      if (!names.includes(name) || !file.startsWith(`${folder}/`)) continue;
      const artifact = { name, compiler: solc.version(), abi: made.abi, bytecode: "0x" + made.evm.bytecode.object };
      if (forCoverage) {
        artifact.runtime = made.evm.deployedBytecode.object;
        artifact.sourceMap = made.evm.deployedBytecode.sourceMap;
        artifact.sources = Object.fromEntries(Object.entries(output.sources).map(([file, made]) => [made.id, file]));
      }
      fs.writeFileSync(path.join(out, `${name}.json`), JSON.stringify(artifact) + "\n");
      console.log(`${name}: ${made.evm.deployedBytecode.object.length / 2} bytes`);
    }
  }
}
