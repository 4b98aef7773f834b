// Drives the emulator with E2B's own SDK. The addresses and the key come from the environment.
import assert from 'node:assert/strict'
import {
  ALL_TRAFFIC, AuthenticationError, CommandExitError, FileNotFoundError, Sandbox, SandboxError,
  SandboxNotFoundError, TimeoutError,
} from 'e2b'

const lines = (text) => text.trimEnd().split('\n')

async function step(name, run) {
  try {
    return await run()
  } catch (err) {
    throw new Error(`step "${name}"`, { cause: err })
  }
}

const awkward = { owner: 'a b&c=d', 'k+ey%': '100% +&= ü', kind: 'agent' }

const sandbox = await step('create', async () => {
  const sandbox = await Sandbox.create('base', {
    timeoutMs: 60_500,
    metadata: awkward,
    envs: { FROM_SANDBOX: 'yes', BOTH: 'sandbox' },
    lifecycle: { onTimeout: 'pause' },
    network: {
      allowOut: ['api.example.com'], denyOut: [ALL_TRAFFIC],
      rules: { 'api.example.com': [{ transform: { headers: { Authorization: 'Bearer first' } } }] },
    },
  })
  assert.match(sandbox.sandboxId, /^i[a-z0-9]{20}$/)
  assert.equal(await sandbox.isRunning(), true)
  return sandbox
})

await step('info', async () => {
  const info = await sandbox.getInfo()
  assert.equal(info.sandboxId, sandbox.sandboxId)
  assert.equal(info.state, 'running')
  assert.equal(info.name, 'base')
  assert.deepEqual(info.metadata, awkward)
  assert.deepEqual(info.lifecycle, { onTimeout: 'pause', autoResume: false })
  const left = info.endAt - Date.now()
  assert.ok(left > 50_000 && left <= 61_000, `${left} ms left`)
})

await step('files', async () => {
  const written = await sandbox.files.write('hello.txt', 'Hello\n')
  assert.equal(written.path, '/home/user/hello.txt')
  assert.equal(written.name, 'hello.txt')
  assert.equal(await sandbox.files.read('/home/user/hello.txt'), 'Hello\n')
  await sandbox.files.write('~/empty', '')
  assert.equal(await sandbox.files.read('empty'), '')

  const name = 'größe & mehr/ü n.txt'
  await sandbox.files.write(name, 'äöü')
  assert.equal(await sandbox.files.read(name), 'äöü')

  const bytes = new Uint8Array(256).map((_, i) => i)
  await sandbox.files.write('binary', bytes.buffer)
  assert.deepEqual(await sandbox.files.read('binary', { format: 'bytes' }), bytes)

  const many = await sandbox.files.write([
    { path: 'many/a b.txt', data: 'a' }, { path: '/home/user/many/ü.txt', data: 'u' },
  ])
  assert.deepEqual(many.map((m) => m.path), ['/home/user/many/a b.txt', '/home/user/many/ü.txt'])

  const large = new Uint8Array(10 << 20).map((_, i) => i * 7 + (i >> 8))
  for (const options of [{}, { useOctetStream: true }, { gzip: true }]) {
    await sandbox.files.write('large', large.buffer, options)
    const got = await sandbox.files.read('large', { format: 'bytes' })
    assert.ok(Buffer.from(got).equals(Buffer.from(large)), 'large file differs')
  }
  await sandbox.files.write('tagged', 'x', { metadata: { colour: 'red' } })
  assert.deepEqual((await sandbox.files.getInfo('tagged')).metadata, { colour: 'red' })
})

await step('directories', async () => {
  assert.equal(await sandbox.files.makeDir('dir/sub'), true)
  assert.equal(await sandbox.files.makeDir('dir/sub'), false)
  await sandbox.files.write('dir/file', '12345')
  await sandbox.files.write('dir/sub/deep', '')
  const names = async (depth) => (await sandbox.files.list('dir', { depth })).map((e) => `${e.path} ${e.type}`)
  assert.deepEqual(await names(1), ['/home/user/dir/file file', '/home/user/dir/sub dir'])
  assert.deepEqual(await names(2), [
    '/home/user/dir/file file', '/home/user/dir/sub dir', '/home/user/dir/sub/deep file',
  ])
  const info = await sandbox.files.getInfo('dir/file')
  assert.equal(info.size, 5)
  assert.match(info.permissions, /^-rw/)
  assert.ok(Date.now() - info.modifiedTime < 60_000)
  const moved = await sandbox.files.rename('dir/file', 'elsewhere/file')
  assert.equal(moved.path, '/home/user/elsewhere/file')
  assert.equal(await sandbox.files.exists('dir/file'), false)
  assert.equal(await sandbox.files.exists('elsewhere/file'), true)
  await sandbox.files.remove('dir')
  await sandbox.files.remove('dir')
  await assert.rejects(sandbox.files.list('dir'), FileNotFoundError)
  await assert.rejects(sandbox.files.read('missing'), FileNotFoundError)
  await assert.rejects(sandbox.files.getInfo('missing'), FileNotFoundError)
})

await step('commands', async () => {
  const both = await sandbox.commands.run('echo out; echo err >&2')
  assert.deepEqual([both.stdout, both.stderr, both.exitCode], ['out\n', 'err\n', 0])

  const failed = await sandbox.commands.run('echo partly; exit 7').catch((err) => err)
  assert.ok(failed instanceof CommandExitError, String(failed))
  assert.deepEqual([failed.exitCode, failed.stdout], [7, 'partly\n'])

  const where = await sandbox.commands.run('basename "$(pwd)"; cat /home/user/hello.txt; echo $HOME', { cwd: '/home/user/many' })
  assert.equal(lines(where.stdout)[0], 'many')
  assert.equal(lines(where.stdout)[1], 'Hello')
  assert.ok(lines(where.stdout)[2].endsWith('/home/user'))
  await assert.rejects(sandbox.commands.run('true', { cwd: '/nowhere' }), SandboxError)

  const envs = await sandbox.commands.run('echo $FROM_SANDBOX $BOTH $USER', { envs: { BOTH: 'command' } })
  assert.equal(envs.stdout, 'yes command user\n')

  let bytes = 0
  const much = await sandbox.commands.run(`head -c ${50 << 20} /dev/zero | tr '\\0' x`, {
    onStdout: (text) => { bytes += text.length }, timeoutMs: 0,
  })
  assert.equal(bytes, 50 << 20)
  assert.equal(much.stdout.length, 50 << 20)

  await assert.rejects(sandbox.commands.run('sleep 60', { timeoutMs: 700 }), TimeoutError)
})

await step('background commands', async () => {
  const cat = await sandbox.commands.run('cat', { background: true, stdin: true })
  assert.ok((await sandbox.commands.list()).some((p) => p.pid === cat.pid && p.cmd === '/bin/bash'))
  await sandbox.commands.sendStdin(cat.pid, 'input\n')
  await sandbox.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'input\n')

  const sleep = await sandbox.commands.run('sleep 60', { background: true })
  const other = await sandbox.commands.connect(sleep.pid)
  assert.equal(await sleep.kill(), true)
  const ends = await Promise.all([sleep, other].map((h) => h.wait().catch((err) => err)))
  for (const end of ends) {
    assert.ok(end instanceof CommandExitError)
    assert.equal(end.exitCode, -1)
    assert.equal(end.error, 'signal: killed')
  }
  assert.equal(await sandbox.commands.kill(sleep.pid), false)
})

await step('pause and connect', async () => {
  const ticking = await sandbox.commands.run('while sleep 0.05; do echo tick; done', { background: true, timeoutMs: 0 })
  ticking.wait().catch(() => {}) // it ends when the sandbox is paused
  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.pause(), false)
  assert.equal((await sandbox.getInfo()).state, 'paused')
  assert.equal(await sandbox.isRunning(), false)
  await assert.rejects(sandbox.commands.run('true'), SandboxNotFoundError)
  await assert.rejects(sandbox.files.read('hello.txt'), TimeoutError)
  await assert.rejects(sandbox.setTimeout(1000), SandboxNotFoundError)

  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 120_000 })
  assert.equal(await again.files.read('hello.txt'), 'Hello\n')
  await sandbox.connect()
  let ticks = 0
  const survivor = await again.commands.connect(ticking.pid, { onStdout: () => { ticks++ } })
  while (ticks === 0) await new Promise((resolve) => setTimeout(resolve, 10))
  assert.equal(await survivor.kill(), true)
})

await step('snapshots', async () => {
  await sandbox.files.write('state', 'before')
  const snapshot = await sandbox.createSnapshot()
  assert.match(snapshot.snapshotId, /^[a-z0-9]{20}:default$/)
  await sandbox.files.write('state', 'after')
  const named = await sandbox.createSnapshot({ name: 'mine' })
  assert.deepEqual(named.names, ['team-slug/mine'])

  const page = Sandbox.listSnapshots({ sandboxId: sandbox.sandboxId, limit: 1 })
  const listed = []
  while (page.hasNext) listed.push(...(await page.nextItems()))
  assert.deepEqual(listed.map((s) => s.snapshotId).sort(), [snapshot.snapshotId, named.snapshotId].sort())

  const fork = await Sandbox.create(snapshot.snapshotId, { metadata: { fork: 'yes' } })
  assert.equal(await fork.files.read('state'), 'before')
  await fork.files.write('state', 'fork')
  assert.equal(await sandbox.files.read('state'), 'after')
  await assert.rejects(Sandbox.deleteSnapshot(snapshot.snapshotId), (err) => err.statusCode === 400)
  assert.equal(await fork.kill(), true)

  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
  assert.equal(await Sandbox.deleteSnapshot(named.snapshotId), true)
  const missing = await Sandbox.create(snapshot.snapshotId).catch((err) => err)
  assert.ok(missing instanceof SandboxError, String(missing))
  assert.equal(missing.statusCode, 404)
})

await step('list', async () => {
  const decoy = await Sandbox.create('base', { metadata: { ...awkward, owner: 'a b' } })
  for (const key of ['owner', 'k+ey%']) {
    const found = await Sandbox.list({ query: { metadata: { [key]: awkward[key] } } }).nextItems()
    assert.ok(found.some((s) => s.sandboxId === sandbox.sandboxId), key)
    assert.equal(found.some((s) => s.sandboxId === decoy.sandboxId), key !== 'owner')
  }
  const page = Sandbox.list({ query: { metadata: { kind: 'agent' }, state: ['running', 'paused'] }, limit: 1 })
  const all = []
  while (page.hasNext) all.push(...(await page.nextItems()))
  assert.deepEqual(all.map((s) => s.sandboxId), [decoy.sandboxId, sandbox.sandboxId])
  await decoy.kill()
})

await step('timeout and network', async () => {
  await sandbox.setTimeout(90_500)
  const left = (await sandbox.getInfo()).endAt - Date.now()
  assert.ok(left > 80_000 && left <= 91_000, `${left} ms left`)
  await sandbox.updateNetwork({
    allowOut: ['api.example.com'], denyOut: [ALL_TRAFFIC],
    rules: { 'api.example.com': [{ transform: { headers: { Authorization: 'Bearer second' } } }] },
  })
  const { network } = await sandbox.getInfo()
  assert.deepEqual(network.allowOut, ['api.example.com'])
  assert.equal(network.rules['api.example.com'][0].transform.headers.Authorization, 'Bearer second')
  await assert.rejects(sandbox.updateNetwork({ allowOut: ['api.example.com'] }), (err) => err.statusCode === 400)
})

await step('errors', async () => {
  await assert.rejects(Sandbox.create('base', { apiKey: 'e2b_0000' }), AuthenticationError)
  await assert.rejects(Sandbox.connect('inothere'), SandboxNotFoundError)
  await assert.rejects(Sandbox.getInfo('inothere'), SandboxNotFoundError)
  assert.equal(await Sandbox.kill('inothere'), false)
  const missing = await Sandbox.create('no-such-template').catch((err) => err)
  assert.ok(missing instanceof SandboxError, String(missing))
  assert.equal(missing.statusCode, 404)
})

await step('kill', async () => {
  assert.equal(await sandbox.kill(), true)
  assert.equal(await sandbox.kill(), false)
  await assert.rejects(sandbox.commands.run('true'), SandboxNotFoundError)
})

console.log('done')
