'use strict';
(() => {
  const all = (selector, root) => [...(root || document).querySelectorAll(selector)];
  const make = (name, attributes, text) => {
    const element = document.createElement(name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    element.textContent = text || '';
    return element;
  };

  // As the legends of the charts say it.
  const bytes = (value) => {
    if (1024 > value) return `${value} B`;
    const names = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
    let [scaled, unit] = [value / 1024, 0];
    while (scaled >= 1023.95 ? names.length > unit + 1 : false) [scaled, unit] = [scaled / 1024, unit + 1];
    return `${scaled.toFixed(1)} ${names[unit]}`.replace('.0 ', ' ');
  };
  const rate = (value) => `${value.toLocaleString('en')} per second`;
  const unrolled = (runs) => runs.split(' ').flatMap((run) => {
    const [value, length] = run.split('*').map(Number);
    return Array(length || 1).fill(value);
  });

  // Values under the cursor, or by the arrow keys.
  all('.plot').forEach((plot) => {
    const [svg, figure] = [plot.querySelector('svg'), plot.parentElement];
    const items = all('.legend li', figure).map((item) => {
      const small = item.querySelector('small');
      return { small, said: small.textContent, values: unrolled(item.dataset.values) };
    });
    const last = items[0].values.length - 1;
    const [from, to] = [Number(svg.dataset.from), Number(svg.dataset.to)];
    const isRate = svg.dataset.unit === 'rate';
    const caption = figure.querySelector('figcaption');
    const when = caption.appendChild(make('small', { class: 'when' }));
    const line = svg.appendChild(document.createElementNS(svg.namespaceURI, 'path'));
    line.setAttribute('class', 'cursor');
    let shown = -1;
    const show = (moment) => {
      shown = moment;
      const is = moment >= 0;
      line.setAttribute('d', is ? `M${1000 * moment / last} 0V100` : '');
      when.textContent = is ? new Date(from + (to - from) * moment / last).toISOString().slice(11, 19) : '';
      items.forEach((item) => {
        item.small.textContent = is ? (isRate ? rate : bytes)(item.values[moment]) : item.said;
      });
    };
    svg.addEventListener('pointermove', (event) => {
      const box = svg.getBoundingClientRect();
      const at = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * last;
      show(isRate ? Math.ceil(at) : Math.floor(at));
    });
    svg.addEventListener('pointerleave', () => show(-1));
    svg.setAttribute('tabindex', '0');
    svg.addEventListener('blur', () => show(-1));
    svg.addEventListener('keydown', (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      show(Math.min(last, Math.max(0, shown + step)));
    });
  });

  // Tables: a click on a heading sorts, a text above keeps the rows that have it.
  const key = (row, at, isWords) => {
    const cell = row.cells[at];
    if (isWords) return cell.textContent;
    return cell.dataset.sort === undefined ? -Infinity : Number(cell.dataset.sort);
  };
  all('table.data').forEach((table) => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const headings = all('th', table);
    headings.forEach((heading, at) => {
      const isWords = rows.every((row) => row.cells[at].dataset.sort === undefined);
      const button = make('button', { type: 'button' }, heading.textContent);
      heading.replaceChildren(button);
      button.addEventListener('click', () => {
        const was = heading.getAttribute('aria-sort');
        const rises = was ? was === 'descending' : isWords;
        headings.forEach((other) => other.removeAttribute('aria-sort'));
        heading.setAttribute('aria-sort', rises ? 'ascending' : 'descending');
        const compare = (left, right) => {
          const [a, b] = [key(left, at, isWords), key(right, at, isWords)];
          return isWords ? a.localeCompare(b, 'en', { numeric: true }) : a === b ? 0 : a > b ? 1 : -1;
        };
        rows.sort((left, right) => (rises ? 1 : -1) * compare(left, right));
        body.append(...rows);
      });
    });
    if (5 > rows.length) return;
    const field = make('input', { type: 'search', placeholder: 'Filter rows', 'aria-label': 'Filter rows' });
    const count = make('small', { role: 'status' });
    const line = make('p', { class: 'filter' });
    line.append(field, ' ', count);
    table.parentElement.before(line);
    field.addEventListener('input', () => {
      const words = field.value.toLowerCase();
      rows.forEach((row) => { row.hidden = !row.textContent.toLowerCase().includes(words); });
      const left = rows.filter((row) => !row.hidden).length;
      count.textContent = words ? `${left} of ${rows.length} rows` : '';
    });
  });

  // A link to a part that is folded opens it, and paper has everything.
  const open = () => {
    const target = location.hash ? document.getElementById(location.hash.slice(1)) : null;
    if (!target) return;
    const inside = target.querySelector('details');
    if (inside) inside.open = true;
    for (let at = target.parentElement; at; at = at.parentElement) if (at.localName === 'details') at.open = true;
    target.scrollIntoView();
  };
  addEventListener('hashchange', open);
  open();
  let folded = [];
  addEventListener('beforeprint', () => {
    folded = all('details:not([open])');
    folded.forEach((part) => { part.open = true; });
  });
  addEventListener('afterprint', () => folded.forEach((part) => { part.open = false; }));
})();
