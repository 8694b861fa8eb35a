-- @include finish, waiting, queues
-- Cancel jobs in any state, and return what that did. KEYS: none.
-- ARGV: 1 seconds for which ids without a record are remembered (0: not at all), so that a later message
--       of theirs is not run. After # may follow a name of this call: a repeat replies as the call did. Then, separated by
--       spaces, may follow id and token of a job on whose behalf they are cancelled. Nothing is done if that job has
--       another token by now or has ended.
--       Then ids, each with a space and an API key after it if only a job of that key is known (-: of no key).
-- Returns per id: unknown, removed (it will not run), asked (its worker is notified) or ended; or false (see 1).
local REMEMBERED_MAX = 50000
local notices, unknown = {}, {}
local remember_s, name, parent, fence = string.match(ARGV[1], '^([^# ]+)#?(%S*) ?(%S*) ?(%S*)$')

local function cancel(id, key)
  local state, model, step, ttl, waiter, ticket, owner, token, sending, of, by, version =
    unpack(read(id, 's', 'm', 'p', 'l', 'w', 'n', 'o', 't', 'fw', 'ky', 'cb', 'pv'))
  if key and key ~= (of or '-') then return 'unknown' end
  if not state then
    unknown[#unknown + 1] = id
    return 'unknown'
  end
  -- A repeat, after the reply was lost.
  if state == 'c' and name ~= '' and by == name then return 'removed' end
  if state == 'c' and name ~= '' and by == name .. ' asked' then return 'asked' end
  -- Its callbacks are being sent.
  if state == 'r' and sending and sending == token then return 'ended' end
  if state == 'r' then
    call('HDEL', keys.job .. id, 'cr')
    call('HSET', keys.job .. id, 'cr', '1')
    if name ~= '' then call('HSET', keys.job .. id, 'cb', name .. ' asked') end
    if model and owner and token then
      local t = notices[owner] or {}
      notices[owner] = t
      t[#t + 1], t[#t + 2], t[#t + 3] = model, id, token
    end
    return 'asked'
  end
  if not waits(state) then return 'ended' end
  local queue = queue_of(model, version)
  finish_cancelled(id, ttl, waiter, queue, remove_queued(queue, id, state, step, ticket))
  if name ~= '' then call('HSET', keys.job .. id, 'cb', name) end
  return 'removed'
end

if parent ~= '' then
  local token, state = unpack(read(parent, 't', 's'))
  if token ~= fence or state ~= 'r' then return false end
end
call('ZCARD', keys.REVOKED)
local asked = {}
for i = 2, #ARGV do
  local id, key = string.match(ARGV[i], '^(%S+) (%S+)$')
  asked[i - 1] = {id or ARGV[i], key}
  local state, model, version = unpack(read(asked[i - 1][1], 's', 'm', 'pv'))
  if waits(state) then check_waiting(queue_of(model, version)) end
end
local answer = {}
for n, a in ipairs(asked) do answer[n] = cancel(a[1], a[2]) end
for owner, jobs in pairs(notices) do call('PUBLISH', keys.cancel_channel .. owner, cmsgpack.pack(jobs)) end
if remember_s ~= '0' and #unknown > 0 then
  begin_with_removal(keys.REVOKED)
  for _, id in ipairs(unknown) do call('ZADD', keys.REVOKED, whole(NOW_US + tonumber(remember_s) * 1e6), id) end
  call('EXPIRE', keys.REVOKED, remember_s)
  call('ZREMRANGEBYSCORE', keys.REVOKED, '-inf', NOW)
  call('ZREMRANGEBYRANK', keys.REVOKED, 0, -(REMEMBERED_MAX + 1))
end
compact()
return answer
