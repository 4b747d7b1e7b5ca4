// Unpacks the contents of the page: deflated JSON, and columns stored byte by byte (see page.py).

async function inflated(id) {
  const text = document.getElementById(id).textContent.trim();
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function loaded() {
  const [text, buffer] = await Promise.all([inflated("document"), inflated("columns")]);
  const whole = JSON.parse(new TextDecoder().decode(text));
  const tables = blockTables(buffer);
  return { ...whole, tables, meansTable: tables.means };
}
