-- @include finish
-- Releasing a leased job: back to its queue, or to its end after too many crashes.
-- How the process of a job ended that was lost with its worker.
local WITH_WORKER = 'with its worker'

-- How a job's last attempt ended, as part of a sentence.
local function ended(r) return 'attempt ' .. (r.attempts or '1') .. ' ended ' .. r.how end

-- Notes how the last attempt of a job ran that ends now, as far as its worker knows it. Without this, a job that ran too
-- briefly for jobs/start.lua would have no start.
local function note_run(id, run)
  if not run then return end
  call('HSET', keys.job .. id, 'st', run[1], 'dw', run[2], 'tm', run[3])
  local owner, task = unpack(read(id, 'ky', 'ws'))
  if task then send_start_task(id, owner, task) end
end

-- Charges a crash to a job that ran alone. After max_crashes it becomes a dead letter and ends; returns whether it did.
local function end_after_crashes(id, raw, max_crashes, queue, r)
  local crashes = (tonumber(r.crashes or '0') or 0) + 1
  call('HSET', keys.job .. id, 'k', crashes)
  if crashes < max_crashes then return false end
  local times = crashes == 1 and 'when' or 'each of the ' .. crashes .. ' times that'
  local message = 'the model process died ' .. times .. ' it ran this input alone; ' .. ended(r)
  add_dead_letter(queue, id, r.token, 'replica-lost', raw, message, r)
  note_run(id, r.run)
  finish_failed(id, r.ttl, r.waiter, 'ReplicaLost', 'replica-lost', message, {'dl', '1'}, queue, raw, r.traceback)
  return true
end

-- The delay after a crash, with full jitter as in workers/jobs/settlement.py. Lua's own random numbers are the same in each
-- call of a script.
local function crash_delay_us(id, token, crashes, base_us, most_us)
  local chance = tonumber(string.sub(redis.sha1hex(id .. ' ' .. (token or '') .. ' ' .. NOW), 1, 12), 16) / 2^48
  return math.floor(chance * math.min(most_us, base_us * 2^(crashes - 1)))
end

-- Schedules a job that was charged for a crash, or ends it if it could then not start in time. Returns what became of
-- it; false if it need not wait.
local function schedule_after_crash(id, raw, losses, queue, r)
  local base_us, most_us = string.match(r.backoff or '', '^(%d+) (%d+)$')
  if not base_us then base_us, most_us = string.match(losses, '^%d+ (%d+) (%d+)') end
  if not base_us then return false end
  local crashes = (tonumber(r.crashes or '0') or 0) + 1
  local delay = crash_delay_us(id, r.token, crashes, tonumber(base_us), tonumber(most_us))
  if delay < 1 then return false end
  local begin_by = try('ZSCORE', keys.EXPIRING, id)
  if type(begin_by) == 'string' and NOW_US + delay > tonumber(begin_by) then
    note_run(id, r.run)
    finish_failed(id, r.ttl, r.waiter, 'ReplicaLost', 'replica-lost',
      'the model process died while it ran this input alone, and the next try would come after its `expires`; ' .. ended(r),
      {}, queue, raw, r.traceback)
    return 'dead'
  end
  call('HSET', KEYS[9], id, raw)
  call('ZADD', KEYS[8], whole(NOW_US + delay), id)
  local message = 'the model process died while it ran this input alone, ' .. crashes .. ' time(s) so far; ' .. ended(r)
  call('HSET', keys.job .. id, 's', 'd', 'x', r.next,
    'e', '{"type":"replica-lost","message":"' .. message .. '","retryable":true}')
  call('HDEL', keys.job .. id, 't', 'st', 'xa')
  count_ended(queue, 'retried', 1)
  return 'delayed'
end

-- After so many losses of its worker that were not charged, a job's message is withheld: whatever reads it may be what dies.
local WITHHELD_AFTER = 10

-- How a lost job runs next (the record's `x`: 1 isolated, 2 exclusive, 3 exclusive and withheld), and whether its loss is
-- charged. Only a job that was surely the cause is charged. r.mark is what jobs/isolate.lua wrote when the job began to run.
local function after_loss(id, mode, r)
  if mode ~= 'lost' then return r.alone or '1', mode == 'crash' and r.alone end
  -- Without a mark of this claim it was only held, or ran with others.
  local marked, scope = string.match(r.mark or '', '^(%d+) ?(%w*)$')
  local began = r.token and marked == r.token
  local next = began and r.alone ~= '3' and '2' or r.alone or '1'
  if began and scope == EXCLUSIVE then return next, true end
  if call('HINCRBY', keys.job .. id, 'xl', 1) >= WITHHELD_AFTER then next = '3' end
  return next, false
end

-- Returns a leased job to the head of its list, and returns what became of it. The caller has checked the token and the
-- types.
-- mode: 'free' undoes the attempt (an orderly release). 'alone' makes the job run isolated, and charges nothing. 'crash'
--       also charges a job that was isolated, because its own model process died by itself. 'lost' is for a death from
--       outside or of the whole worker, and charges only a job that ran exclusively. A job that is charged then waits.
-- losses: how many charged crashes it survives and, with spaces between, base and limit in us of the wait after one
--       (without them it does not wait). Two more numbers are how failures are kept; see lib/failure.lua.
-- how: how the process ended; needs no escaping in JSON. traceback: its stacks, if they are known.
-- run: when the attempt began in us, its wait for the device in ms, and its timings, if they are known.
local function release(id, mode, losses, queue, how, traceback, run)
  keep_failures(string.match(losses, '^%d+ %d+ %d+ (%d+ %d+)$'))
  local raw = call('HGET', KEYS[6], id)
  local state, step, alone, crashes, cancel, ttl, waiter, attempts, token, created, backoff, mark =
    unpack(read(id, 's', 'p', 'x', 'k', 'cr', 'l', 'w', 'a', 't', 'c', 'rb', 'xa'))
  local r = {id = id, step = step, alone = alone, crashes = crashes, ttl = ttl, waiter = waiter, token = token,
    attempts = attempts, created = created, backoff = backoff, mark = mark, how = how, traceback = traceback, run = run}
  call('ZREM', KEYS[5], id)
  call('HDEL', KEYS[6], id)
  if state and state ~= 'r' then return 'gone' end
  if cancel then
    if mode == 'free' then undo_start(id, attempts) else note_run(id, run) end
    finish_cancelled(id, ttl, waiter, queue, raw)
    return 'cancelled'
  end
  if not raw then
    -- Another program removed the message from `held`. The job can never run, so it ends with an error.
    if state then
      finish_failed(id, ttl, waiter, 'ReplicaLost', 'replica-lost',
        'the message of the job was removed from Redis while it was leased', {}, queue)
    end
    return 'gone'
  end
  local charged
  if state then r.next, charged = after_loss(id, mode, r) end
  if charged then
    if end_after_crashes(id, raw, tonumber(string.match(losses, '^%d+')), queue, r) then return 'dead' end
    local outcome = schedule_after_crash(id, raw, losses, queue, r)
    if outcome then return outcome end
  end
  local s = STEP_INDEX[step or '0'] or 1
  call('RPUSH', KEYS[s], raw)
  call('HINCRBY', KEYS[7], 'out' .. STEPS[s], -1)
  -- Without a record (it was deleted) the message is like a stock client's: its claim makes a new one.
  if state then
    if mode == 'free' then
      call('HSET', keys.job .. id, 's', 'q', 'a', math.max(0, (tonumber(attempts or '0') or 0) - 1))
    else
      call('HSET', keys.job .. id, 's', 'q', 'x', r.next)
    end
    call('HDEL', keys.job .. id, 't', 'st', 'xa')
  end
  return 'queued'
end
