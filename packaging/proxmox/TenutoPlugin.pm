# The storage type `tenuto` of Proxmox VE: raw images in a directory, each served to its guest by
# the Tenuto daemon of the node, as a block device.
#
# Owns how the operations of a storage become commands of `tenuto`. Always true: an image is removed
# only after its volume was, and only if no other node serves it; a volume is touched only if its
# origin is an image of this storage; what is refused says why, in Tenuto's own words where it was
# Tenuto. Deliberately absent: snapshots, templates, linked clones and another format than raw.
#
#   image in the directory ─▶ volume add ─▶ volume device ─▶ guest          activate
#   guest has ended ─▶ device --detach ─▶ shared, no cluster: destage, rm    deactivate
#
# Install it as /usr/share/perl5/PVE/Storage/Custom/TenutoPlugin.pm; see docs/recipes/proxmox.md.
package PVE::Storage::Custom::TenutoPlugin;

use v5.26;
use warnings;

use Errno ();
use Fcntl qw(O_CREAT O_EXCL O_WRONLY);
use File::Path ();
use JSON::PP ();

use PVE::Storage::Plugin;
use PVE::Tools;

use base qw(PVE::Storage::Plugin);

# Oldest and newest interface of PVE::Storage that this file was read against.
use constant { API_OLDEST => 10, API_NEWEST => 15 };

# What `tenuto` ends with where it would lose data.
use constant REFUSED => 4;

# Seconds that a command may take. A destage has no limit, because it takes as long as the storage
# needs.
use constant { ASK_SECONDS => 20, CHANGE_SECONDS => 60, RESIZE_SECONDS => 300 };

# In a cluster a device waits for the node that had the volume before. Tests wait less.
our $attach_seconds = 120;

# How long a client may take to be gone after its device, and a cluster to say who owns a volume.
our $settle_seconds = 5;
use constant SETTLE_PAUSE => 0.1;

# Names of volumes of Tenuto are not longer.
use constant NAME_MAX => 63;

my @POLICIES = qw(write-back write-through uncached);

# The program. Tests put the one that they test here.
our @tenuto = ('/usr/bin/tenuto');

# The program of `volume device`, which needs a driver of the kernel. Tests put another one here.
our @device = @tenuto;

# A process stays with each device and connects it again after a restart of the daemon. It must
# not end with the service that activated the volume.
our @scope = -d '/run/systemd/system' ? qw(/usr/bin/systemd-run --scope --quiet --collect) : ();

# Commands of Tenuto

# Runs a command to its end: its exit code, its document, and what an error says.
my sub ask {
    my ($program, $arguments, $seconds) = @_;
    my $said = '';
    my $code = eval {
        PVE::Tools::run_command(
            [@$program, '--json', @$arguments],
            outfunc => sub { $said .= "$_[0]\n" },
            errfunc => sub { },
            noerr => 1,
            timeout => $seconds,
        );
    };
    if (my $error = $@) {
        die $error if $error !~ /got timeout/;
        die "tenuto: no end of 'tenuto @$arguments' within $seconds s\n";
    }
    my $document = eval { JSON::PP::decode_json($said) };
    $document = {} if ref($document) ne 'HASH';
    my $error = ref($document->{error}) eq 'HASH' ? $document->{error} : {};
    my $how = $code < 0 ? 'could not be run' : "ended with code $code";
    my $message = $error->{message} // "'@$program @$arguments' $how";
    return {
        code => $code,
        document => $document,
        kind => $error->{kind} // '',
        message => "tenuto: $message\n",
    };
}

# The document of a command that must succeed.
my sub must {
    my $answer = ask(@_);
    die $answer->{message} if $answer->{code} != 0;
    return $answer->{document};
}

my sub volume {
    my ($verb, $name, @more) = @_;
    return must(\@tenuto, ['volume', $verb, $name, @more], CHANGE_SECONDS);
}

# What the daemon knows of a volume; undef if it has none of this name.
my sub show {
    my ($name) = @_;
    my $answer = ask(\@tenuto, ['volume', 'show', $name], ASK_SECONDS);
    return undef if $answer->{kind} eq 'not_found';
    die $answer->{message} if $answer->{code} != 0;
    return $answer->{document};
}

# Looks at a volume until a condition holds, for some seconds; what was seen last.
my sub settled {
    my ($name, $holds) = @_;
    my $end = time() + $settle_seconds;
    my $volume = show($name);
    while ($volume && !$holds->($volume) && time() < $end) {
        select(undef, undef, undef, SETTLE_PAUSE);
        $volume = show($name);
    }
    return $volume;
}

my sub without_clients { return settled($_[0], sub { !$_[0]->{clients} }) }

# The name of this node in its cluster of Tenuto; undef if it is in none.
my sub cluster_host {
    my $peers = must(\@tenuto, ['peer', 'ls'], ASK_SECONDS);
    return $peers->{cluster} ? $peers->{own}->{host} // '' : undef;
}

# Names and images

# Without dots, so that no image has a name that a ledger of another one could have.
my sub disk_name {
    my ($volname) = @_;
    my ($name, $vmid) = $volname =~ /\A(vm-([1-9][0-9]*)-[A-Za-z0-9_-]+)\z/;
    die "'$volname' is not a disk of a tenuto storage; write vm-VMID-NAME with letters, digits,"
        . " '-' and '_', and no extension\n"
        if !defined($name);
    die "'$name' is too long; a volume of Tenuto has at most " . NAME_MAX . " characters\n"
        if length($name) > NAME_MAX;
    return ($name, $vmid);
}

my sub directory {
    my ($scfg) = @_;
    my $path = $scfg->{'tenuto-path'} // die "the storage has no tenuto-path\n";
    # No name that means something else on a command line or in a list of keys.
    my ($clean) = $path =~ m{\A(/[A-Za-z0-9_./:@+-]*)\z};
    die "tenuto-path '$path' is not taken; write an absolute path of letters, digits and _./:@+-\n"
        if !defined($clean);
    $clean =~ s{/+}{/}g;
    $clean =~ s{(?<=.)/\z}{};
    return $clean;
}

my sub image { return directory($_[0]) . "/$_[1].raw" }

my sub policy {
    my ($scfg) = @_;
    my $policy = $scfg->{'tenuto-policy'} // $POLICIES[0];
    # An ephemeral volume would discard what a guest has written.
    my ($known) = grep { $_ eq $policy } @POLICIES;
    return $known // die "tenuto-policy '$policy' is not taken; write one of @POLICIES\n";
}

my sub replicas {
    my ($scfg) = @_;
    my $replicas = $scfg->{'tenuto-replicas'} // 0;
    my ($count) = $replicas =~ /\A([0-7])\z/;
    return $count // die "tenuto-replicas '$replicas' is not taken; write 0 to 7\n";
}

# Names of files in the directory, clean ones only.
my sub files {
    my ($scfg) = @_;
    my $directory = directory($scfg);
    opendir(my $handle, $directory) || die "cannot read '$directory': $!\n";
    return map { /\A(vm-[A-Za-z0-9_.-]+)\z/ ? $1 : () } readdir($handle);
}

# What Tenuto keeps beside an image: ledgers, journals, and the records of a vault.
my sub is_beside {
    my ($file, $name) = @_;
    my $number = qr/-[0-9]+-[0-9a-f]+/;
    return $file =~ /\A\Q$name\E\.raw\.tenuto(?:-journal)?(?:$number)?\z/
        || $file eq "$name.raw.tenuto.d";
}

# Size, used bytes and time of change of an image; the list is empty if it is gone.
my sub measure {
    my ($path) = @_;
    my @status = lstat($path);
    if (!@status) {
        return if $!{ENOENT};
        die "cannot read '$path': $!\n";
    }
    die "'$path' is not a file\n" if !-f _;
    return ($status[7], ($status[12] // 0) * 512, $status[10]);
}

# Volumes

my sub is_of_image {
    my ($volume, $image) = @_;
    my $origin = $volume->{origin}->{path} // '';
    return 1 if $origin eq $image;
    my @theirs = stat($origin);
    my @ours = stat($image);
    return @theirs && @ours && $theirs[0] == $ours[0] && $theirs[1] == $ours[1];
}

# The volume of an image, if the daemon has it.
my sub known {
    my ($scfg, $name) = @_;
    my $volume = show($name);
    return $volume if !$volume || is_of_image($volume, image($scfg, $name));
    die "tenuto: volume $name: is another image on this node, $volume->{origin}->{path};"
        . " give this disk another name, or remove that volume\n";
}

my sub add {
    my ($scfg, $name) = @_;
    my @keys = ('format=raw', 'export=nbd', 'policy=' . policy($scfg));
    push @keys, 'replicas=' . replicas($scfg) if replicas($scfg);
    return volume('add', $name, 'origin=' . image($scfg, $name), @keys);
}

# Undoes an `add` of an operation that failed; its error is told, not one of this.
my sub take_back {
    my ($name) = @_;
    my $answer = eval { ask(\@tenuto, ['volume', 'rm', $name], CHANGE_SECONDS) };
    my $error = $@ || ($answer->{code} ? $answer->{message} : '');
    warn "the volume stays on this node: $error" if $error;
}

# Lets the daemon serve an image as the storage says; whether that is new.
my sub serve {
    my ($scfg, $name) = @_;
    my $volume = known($scfg, $name);
    my $ownership = $volume ? $volume->{ownership} // '' : '';
    if ($volume && $volume->{state} eq 'away' && $ownership =~ /\A(?:away|held)\z/) {
        # The image may have been made anew on another node since this one served it. Copies that
        # this node keeps for others are not lost by that.
        volume('rm', $name);
        $volume = undef;
    }
    if (!$volume) {
        add($scfg, $name);
        return 1;
    }
    if ($volume->{state} eq 'held') {
        my $held = $volume->{held} // {};
        my @why = grep { defined } @{$held}{qw(reason go_on)};
        die 'tenuto: ' . join('; ', @why ? @why : ("volume $name: is held")) . "\n";
    }
    my @changed = ();
    push @changed, 'policy=' . policy($scfg) if $volume->{policy} ne policy($scfg);
    push @changed, 'replicas=' . replicas($scfg) if $volume->{replicas} != replicas($scfg);
    volume('set', $name, @changed) if @changed;
    return 0;
}

my sub device { return "/dev/tenuto/$_[0]" }

my sub attach {
    my ($name) = @_;
    my $document = must([@scope, @device], ['volume', 'device', $name], $attach_seconds);
    my $link = $document->{link} // '';
    die "tenuto: volume $name: its device is '$link', not " . device($name) . "\n"
        if $link ne device($name);
}

my sub detach {
    my ($name) = @_;
    my $answer = ask(\@device, ['volume', 'device', $name, '--detach'], CHANGE_SECONDS);
    return if $answer->{code} == 0 || $answer->{kind} eq 'not_found';
    die $answer->{message};
}

# Makes the image complete and lets go of it, so that any node can serve it.
my sub let_go {
    my ($name) = @_;
    my $volume = without_clients($name) // return;
    must(\@tenuto, ['volume', 'destage', $name, '--wait'], undef) if $volume->{dirty_bytes};
    volume('rm', $name);
}

# Dies if another node of the cluster serves the volume. Without a cluster the lock of the image and
# the ledger beside it have said so before.
my sub must_be_ours {
    my ($name) = @_;
    my $host = cluster_host() // return;
    my $settled = sub { ($_[0]->{ownership} // 'looking') !~ /\A(?:looking|taking|releasing)\z/ };
    my $volume = settled($name, $settled) // die "tenuto: volume $name: is gone\n";
    my $ownership = $volume->{ownership} // 'looking';
    my $owner = $volume->{owner};
    return if $ownership eq 'owner' || ($ownership eq 'away' && !defined($owner));
    my $why = $volume->{ownership_reason} // 'its owner is not known yet';
    my $where = defined($owner) && $owner ne $host ? "; destroy the disk on node $owner" : '';
    die "tenuto: volume $name: $why$where\n";
}

# A full storage takes removals all the same.
my sub must_take_changes {
    my ($directory) = @_;
    my $probe = "$directory/.tenuto-probe-$$";
    if (sysopen(my $file, $probe, O_WRONLY | O_CREAT | O_EXCL, 0600)) {
        return if unlink($probe);
    }
    die "cannot remove files of '$directory': $!\n" if !$!{ENOSPC} && !$!{EDQUOT};
}

# Removes the volume of a disk that is to be destroyed, with what only the cache has of it.
my sub discard {
    my ($scfg, $name) = @_;
    without_clients($name);
    my $answer = ask(\@tenuto, ['volume', 'rm', $name], CHANGE_SECONDS);
    return if $answer->{code} == 0;
    my $volume = show($name);
    die $answer->{message}
        if $answer->{code} != REFUSED || !$volume || $volume->{clients} || !$volume->{dirty_bytes};
    # A disk that could not be destroyed afterwards keeps what was written to it.
    must_take_changes(directory($scfg));
    volume('rm', $name, "--discard-dirty=$name");
}

my sub remove_beside {
    my ($scfg, $name) = @_;
    for my $file (grep { is_beside($_, $name) } files($scfg)) {
        my $path = directory($scfg) . "/$file";
        if (-d $path && !-l $path) {
            File::Path::remove_tree($path);
        } else {
            unlink($path) || warn "cannot remove '$path': $!\n";
        }
    }
}

my sub no_snapshot {
    my ($snapname) = @_;
    die "snapshot '$snapname': a tenuto storage has no snapshots\n" if defined($snapname);
}

# Configuration

sub api {
    my $theirs = PVE::Storage::APIVER();
    return API_NEWEST if $theirs > API_NEWEST;
    return $theirs < API_OLDEST ? API_OLDEST : $theirs;
}

sub type { return 'tenuto' }

sub plugindata {
    return {
        content => [{ images => 1 }, { images => 1 }],
        format => [{ raw => 1 }, 'raw'],
        'sensitive-properties' => {},
    };
}

# The directory is not `path`: Proxmox VE takes a storage with that for one of files, and then gives
# its guests the files themselves.
sub properties {
    return {
        'tenuto-path' => {
            description => 'Directory of the raw images that Tenuto serves.',
            type => 'string',
            format => 'pve-storage-path',
        },
        'tenuto-policy' => {
            description => 'When a flush of the guest is answered.',
            type => 'string',
            enum => [@POLICIES],
            default => $POLICIES[0],
        },
        'tenuto-replicas' => {
            description => 'Copies of unwritten data on other hosts of a cluster of Tenuto.',
            type => 'integer',
            minimum => 0,
            maximum => 7,
            default => 0,
        },
    };
}

sub options {
    return {
        'tenuto-path' => { fixed => 1 },
        'tenuto-policy' => { optional => 1 },
        'tenuto-replicas' => { optional => 1 },
        nodes => { optional => 1 },
        shared => { optional => 1 },
        disable => { optional => 1 },
        content => { optional => 1 },
        bwlimit => { optional => 1 },
    };
}

# The storage

sub check_connection {
    my ($class, $storeid, $scfg) = @_;
    must(\@tenuto, ['peer', 'ls'], ASK_SECONDS);
    return 1;
}

sub activate_storage {
    my ($class, $storeid, $scfg, $cache) = @_;
    my $directory = directory($scfg);
    policy($scfg);
    replicas($scfg);
    # A mount whose server is away would hold this process.
    return if PVE::Tools::run_fork_with_timeout(2, sub { return -d $directory ? 1 : 0 });
    die "storage '$storeid': directory '$directory' is not there or does not answer\n";
}

# Volumes are deactivated one by one.
sub deactivate_storage { return }

sub status {
    my ($class, $storeid, $scfg, $cache) = @_;
    my $room = PVE::Tools::df(directory($scfg), 2);
    return undef if !$room || !$room->{total};
    return ($room->{total}, $room->{avail}, $room->{used}, 1);
}

# Names, sizes, lists

sub parse_volname {
    my ($class, $volname) = @_;
    my ($name, $vmid) = disk_name($volname);
    return ('images', $name, $vmid, undef, undef, undef, 'raw');
}

sub filesystem_path {
    my ($class, $scfg, $volname, $snapname) = @_;
    no_snapshot($snapname);
    my ($name, $vmid) = disk_name($volname);
    return wantarray ? (device($name), $vmid, 'images') : device($name);
}

sub path {
    my ($class, $scfg, $volname, $storeid, $snapname) = @_;
    return $class->filesystem_path($scfg, $volname, $snapname);
}

sub qemu_blockdev_options {
    my ($class, $scfg, $storeid, $volname, $machine_version, $options) = @_;
    my $path = $class->filesystem_path($scfg, $volname, $options->{'snapshot-name'});
    return { driver => 'host_device', filename => $path };
}

sub list_images {
    my ($class, $storeid, $scfg, $vmid, $vollist, $cache) = @_;
    my $directory = directory($scfg);
    my $images = [];
    for my $file (files($scfg)) {
        my ($stem) = $file =~ /\A(.+)\.raw\z/;
        next if !defined($stem);
        my ($name, $owner) = eval { disk_name($stem) };
        next if !defined($name);
        my $volid = "$storeid:$name";
        if ($vollist) {
            next if !grep { $_ eq $volid } @$vollist;
        } elsif (defined($vmid)) {
            next if $owner ne $vmid;
        }
        # It may go meanwhile, or be of another kind.
        my ($size, $used, $changed) = eval { measure("$directory/$file") };
        next if !defined($size);
        push @$images,
            {
                volid => $volid,
                format => 'raw',
                size => $size,
                used => $used,
                vmid => $owner,
                ctime => $changed,
            };
    }
    return $images;
}

# A name is taken by an image, by what is left of one, and by a volume of this node from elsewhere.
sub find_free_diskname {
    my ($class, $storeid, $scfg, $vmid, $fmt, $add_fmt_suffix) = @_;
    my @taken = map { /\A([A-Za-z0-9_-]+)\.raw(?:\.tenuto.*)?\z/ ? $1 : () } files($scfg);
    my $volumes = must(\@tenuto, ['volume', 'ls'], ASK_SECONDS)->{volumes} // [];
    push @taken, map { $_->{name} } @$volumes;
    my $free =
        PVE::Storage::Plugin::get_next_vm_diskname(\@taken, $storeid, $vmid, $fmt, $scfg, undef);
    return (disk_name($free))[0];
}

sub volume_size_info {
    my ($class, $scfg, $storeid, $volname, $timeout) = @_;
    my ($name) = disk_name($volname);
    my ($size, $used, $changed) = measure(image($scfg, $name));
    die "volume '$storeid:$name': its image is not there\n" if !defined($size);
    return wantarray ? ($size, 'raw', $used, undef, $changed) : $size;
}

sub volume_has_feature {
    my ($class, $scfg, $feature, $storeid, $volname, $snapname, $running, $opts) = @_;
    disk_name($volname);
    return undef if defined($snapname);
    return { copy => 1, sparseinit => 1 }->{$feature};
}

# Make, change, remove

sub alloc_image {
    my ($class, $storeid, $scfg, $vmid, $fmt, $name, $size) = @_;
    die "format '$fmt' is not supported by a tenuto storage; its images are raw\n" if $fmt ne 'raw';
    $name //= $class->find_free_diskname($storeid, $scfg, $vmid, $fmt);
    ($name, my $owner) = disk_name($name);
    die "disk '$name' is not of guest $vmid\n" if $owner ne $vmid;
    my ($kib) = $size =~ /\A([1-9][0-9]*)(?:\.[0-9]+)?\z/;
    die "a disk of '$size' KiB cannot be made\n" if !defined($kib);
    $kib++ if $size > $kib;
    my $image = image($scfg, $name);
    my ($left) = grep { is_beside($_, $name) } files($scfg);
    die "'$left' beside '$image' belongs to an image that was removed without its volume; see"
        . " 'tenuto origin inspect'\n"
        if defined($left);
    sysopen(my $file, $image, O_WRONLY | O_CREAT | O_EXCL, 0640)
        || die "cannot make '$image': $!\n";
    if (!truncate($file, $kib * 1024) || !close($file)) {
        my $error = $!;
        unlink($image);
        die "cannot make '$image': $error\n";
    }
    return $name;
}

sub volume_resize {
    my ($class, $scfg, $storeid, $volname, $size, $running, $snapname) = @_;
    no_snapshot($snapname);
    my ($name) = disk_name($volname);
    my ($bytes) = $size =~ /\A([0-9]+)\z/ or die "'$size' is not a number of bytes\n";
    my $added = serve($scfg, $name);
    eval { must(\@tenuto, ['volume', 'resize', $name, $bytes], RESIZE_SECONDS) };
    my $error = $@;
    take_back($name) if $added;
    die $error if $error;
    return;
}

sub free_image {
    my ($class, $storeid, $scfg, $volname, $isBase, $format) = @_;
    my ($name) = disk_name($volname);
    my $image = image($scfg, $name);
    my ($size) = measure($image);
    my $volume = known($scfg, $name);
    detach($name) if $volume;
    if (defined($size)) {
        # To serve an image is the proof that no other node does.
        my $added = serve($scfg, $name);
        eval {
            must_be_ours($name);
            discard($scfg, $name);
        };
        if (my $error = $@) {
            take_back($name) if $added;
            die $error;
        }
        unlink($image) || die "cannot remove '$image', which no volume has any more: $!\n";
    } else {
        warn "disk image '$image' does not exist\n";
        volume('rm', $name) if $volume;
    }
    remove_beside($scfg, $name);
    return undef;
}

# Of a guest that starts and ends

sub activate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $cache, $hints) = @_;
    no_snapshot($snapname);
    my ($name) = disk_name($volname);
    my ($size) = measure(image($scfg, $name));
    die "volume '$storeid:$name': its image is not there\n" if !defined($size);
    my $added = serve($scfg, $name);
    eval { attach($name) };
    if (my $error = $@) {
        # Another node could not serve it, and a client that still waits here would take it later.
        take_back($name) if $added;
        die $error;
    }
    return;
}

# On a shared storage another node may be the next. In a cluster of Tenuto that one asks this one
# for what is dirty; else the image is made complete, and let go of. A local storage keeps its
# volumes, with what is dirty and what is cached.
sub deactivate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $cache) = @_;
    no_snapshot($snapname);
    my ($name) = disk_name($volname);
    my $volume = show($name);
    # Of a guest that did not start, because another image has its name here.
    return if !$volume || !is_of_image($volume, image($scfg, $name));
    detach($name);
    return if !$scfg->{shared} || defined(cluster_host());
    let_go($name);
    return;
}

# What a tenuto storage does not do

sub volume_snapshot {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;
    no_snapshot($snap);
}

sub volume_rollback_is_possible {
    my ($class, $scfg, $storeid, $volname, $snap, $blockers) = @_;
    no_snapshot($snap);
}

sub volume_snapshot_rollback {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;
    no_snapshot($snap);
}

sub volume_snapshot_delete {
    my ($class, $scfg, $storeid, $volname, $snap, $running) = @_;
    no_snapshot($snap);
}

sub volume_snapshot_info { return {} }

sub rename_snapshot {
    my ($class, $scfg, $storeid, $volname, $source_snap, $target_snap) = @_;
    no_snapshot($source_snap);
}

sub volume_qemu_snapshot_method { return 'storage' }

sub create_base {
    my ($class, $storeid, $scfg, $volname) = @_;
    die "disk '$volname': a tenuto storage has no templates\n";
}

sub clone_image {
    my ($class, $scfg, $storeid, $volname, $vmid, $snap) = @_;
    die "disk '$volname': a tenuto storage has no linked clones; make a full clone\n";
}

sub rename_volume {
    my ($class, $scfg, $storeid, $source_volname, $target_vmid, $target_volname) = @_;
    die "disk '$source_volname': a tenuto storage renames no disks; make a full clone\n";
}

sub volume_export_formats { return () }

sub volume_import_formats { return () }

sub volume_export {
    my ($class, $scfg, $storeid, $fh, $volname) = @_;
    die "disk '$volname': a tenuto storage exports no disks; back the guest up and restore it\n";
}

sub volume_import {
    my ($class, $scfg, $storeid, $fh, $volname) = @_;
    die "disk '$volname': a tenuto storage imports no disks; back the guest up and restore it\n";
}

1;
