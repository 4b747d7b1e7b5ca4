// What the page carries, unpacked: deflated JSON, and columns as differences (see page.py).

async function inflated(id) {
  const text = document.getElementById(id).textContent.trim();
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// A column as running sums: times as doubles, which are exact below 2**53, the rest as 32 bits.
function summed(steps, wide) {
  const values = wide ? new Float64Array(steps.length) : new Int32Array(steps.length);
  let sum = 0;
  for (let i = 0; i < steps.length; i += 1) {
    sum += steps[i];
    values[i] = sum;
  }
  return values;
}

async function loaded() {
  const [text, buffer] = await Promise.all([inflated("document"), inflated("columns")]);
  const whole = JSON.parse(new TextDecoder().decode(text));
  const tables = blockTables(buffer);
  for (const columns of Object.values(tables)) {
    for (const [column, steps] of Object.entries(columns)) {
      if (column !== "rows") columns[column] = summed(steps, column.endsWith("_ns"));
    }
  }
  return { ...whole, tables, meansTable: tables.means };
}
